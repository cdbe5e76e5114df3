"""Train one attention layer in seconds and compare it with the theory.

    python -m saf_titan.one_layer predict --ratio 1 10 100
    python -m saf_titan.one_layer train --parametrization FAFO --ratio 10
    python -m saf_titan.one_layer figure2 --out outputs/figure2
    python -m saf_titan.one_layer sweep --parametrization CACO --ratio 0.1 1 10 --out outputs/sweep

`figure2` trains the eight settings of arXiv 2608.06776, Figure 2; `sweep` plots attention against the ratio of the two
learning rates. Both write a picture and a table (csv and json), which holds the theory's prediction too, and print the
table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from saf_titan.fields.command_line import Parser, note_unused, run_command, value_of
from saf_titan.fields.ranges import Range
from saf_titan.one_layer import theory
from saf_titan.one_layer.experiments import Arm, figure_2, predicted_start, run_arm, sweep
from saf_titan.one_layer.picture import save_maps, save_sweep, save_table
from saf_titan.one_layer.setting import PARAMETRIZATIONS, Ramp, Task
from saf_titan.one_layer.train import OPTIMIZERS, Progress, Training

_POSITIVE = value_of(Annotated[float, Range(above=0.0)])
_AT_LEAST_0 = value_of(Annotated[int, Range(low=0)])
_AT_LEAST_1 = value_of(Annotated[int, Range(low=1)])
_AT_LEAST_2 = value_of(Annotated[int, Range(low=2)])
_SEED = value_of(Annotated[int, Range(low=0, below=2**32)])


def predict(args: argparse.Namespace) -> int:
    task = _task(args)
    rows = [
        [theory.predicted_mass(name, task, ratio, at_loss=args.until_loss) for name in PARAMETRIZATIONS]
        for ratio in args.ratio
    ]
    print(f"attention on distinct tokens at NLL {args.until_loss:g}, by the population flow (uniform attention: "
          f"{task.initial_mass:.4f})")  # fmt: skip
    print(f"{'ratio':>8}" + "".join(f"{name:>9}" for name in PARAMETRIZATIONS))
    for ratio, masses in zip(args.ratio, rows, strict=True):
        print(f"{ratio:>8g}" + "".join(f"{mass:>9.4f}" for mass in masses))
    return 0


def train_one(args: argparse.Namespace) -> int:
    if (args.ratio_end is None) != (not args.ramp_steps):
        raise ValueError("--ratio-end and --ramp-steps make a ramp together; give both, or neither")
    _folder(args)
    arm = run_arm(args.parametrization, _training(args, _ramp(args)), progress=_progress(args.parametrization))
    return _finish(args, "train", [arm])


def figure2(args: argparse.Namespace) -> int:
    _folder(args)
    arms = figure_2(_training(args, Ramp()), progress=_progress)
    save_maps(_folder(args) / "figure2.png", arms)
    return _finish(args, "figure2", arms)


def sweep_ratios(args: argparse.Namespace) -> int:
    if len(set(args.ratio)) < len(args.ratio):
        raise ValueError("--ratio: the same ratio is given twice")
    training = _training(args, Ramp())
    _folder(args)
    arms = sweep(training, args.ratio, progress=_progress)
    grid = np.geomspace(min(args.ratio) / 2, max(args.ratio) * 2, 60)
    initial = predicted_start(training)

    def mass(ratio: float) -> float:
        name, loss = args.parametrization, args.until_loss
        return theory.predicted_mass(name, training.task, ratio, at_loss=loss, initial=initial)

    # like the column of the table, the picture has no prediction where the theory does not cover the training
    curve = [] if initial is None else [(ratio, mass(ratio)) for ratio in grid.tolist()]
    save_sweep(_folder(args) / "sweep.png", arms, curve)
    return _finish(args, "sweep", arms)


def _finish(args: argparse.Namespace, name: str, arms: Sequence[Arm]) -> int:
    """Write and print the table; return the exit status, which is 1 if a seed did not reach the loss."""
    folder = _folder(args)
    print(save_table(folder, name, arms))
    print(f"wrote {folder}")
    late = [arm for arm in arms if not arm.result.reached_S.all()]
    for arm in late:
        print(
            f"{arm.title}: {int((~arm.result.reached_S).sum())} of {args.seeds} seeds did not reach NLL "
            f"{args.until_loss:g} in {args.max_steps:,} steps; raise --max-steps, or change --rate",
            file=sys.stderr,
        )
    return int(bool(late))


def _folder(args: argparse.Namespace) -> Path:
    """Make and return the folder of the results; called before training too, so that a bad path fails early."""
    folder: Path = args.out
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"--out {folder}: a part of this path is a file; name a folder") from None
    return folder


def _task(args: argparse.Namespace) -> Task:
    return Task(classes=args.classes, distinct=args.distinct, common=args.common)


def _ramp(args: argparse.Namespace) -> Ramp:
    end = args.ratio if args.ratio_end is None else args.ratio_end
    return Ramp(start=args.ratio, end=end, steps=args.ramp_steps)


def _training(args: argparse.Namespace, ramp: Ramp) -> Training:
    if args.optimizer == "gd" and args.batch_size is not None:
        raise ValueError("--batch-size is for sgd and adamw; gd takes the whole task at every step")
    if args.optimizer == "gd" and args.aligned:
        note_unused(args, ["seed"], "with --aligned and --optimizer gd, where nothing is drawn")
        if args.seeds > 1:
            print(f"note: all {args.seeds} seeds give the same model, because nothing is drawn", file=sys.stderr)
    return Training(
        parametrization=args.parametrization,
        task=_task(args),
        ramp=ramp,
        optimizer=args.optimizer,
        rate=args.rate,
        batch_size=args.batch_size or Training.batch_size,
        until_loss=args.until_loss,
        max_steps=args.max_steps,
        seeds=args.seeds,
        aligned=args.aligned,
        init_scale=args.init_scale,
        full_vocabulary=args.full_vocabulary,
        double=args.double,
        first_seed=args.seed,
    )


def _progress(title: str) -> Progress:
    """Return a function that writes the progress to the terminal, at most every two seconds."""
    written = time.monotonic()

    def show(step: int, loss: float) -> None:
        nonlocal written
        if time.monotonic() - written >= 2:
            written = time.monotonic()
            print(f"{title}: step {step:,}, loss {loss:.4f}", file=sys.stderr)

    return show


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog="python -m saf_titan.one_layer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands: Any = main.add_subparsers(required=True, metavar="command")
    task = Parser(add_help=False)
    task.add_argument("--classes", type=_AT_LEAST_2, default=4, help="number of classes (default: 4)")
    task.add_argument("--distinct", type=_AT_LEAST_1, default=3, help="token types that each class owns (default: 3)")
    task.add_argument("--common", type=_AT_LEAST_0, default=5, help="token types that belong to no class (default: 5)")
    task.add_argument(
        "--until-loss", type=_POSITIVE, default=1e-3, metavar="NATS", help="NLL to stop at (default: 0.001)"
    )

    training = Parser(add_help=False)
    training.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="sgd", help="gd takes the whole task at every step (default: sgd)"
    )
    training.add_argument("--rate", type=_POSITIVE, default=1.0, help="learning rate of the OV circuit (default: 1)")
    training.add_argument("--batch-size", type=_AT_LEAST_1, help="for sgd and adamw (default: 32)")
    training.add_argument("--max-steps", type=_AT_LEAST_1, default=100_000, help="(default: 100000)")
    training.add_argument("--seeds", type=_AT_LEAST_1, default=5, help="number of seeds (default: 5)")
    training.add_argument("--seed", type=_SEED, default=0, help="the first seed (default: 0)")
    training.add_argument(
        "--init-scale", type=_POSITIVE, default=0.1, help="size of the initial weights (default: 0.1)"
    )
    training.add_argument("--aligned", action="store_true", help="start from the weights that the theory assumes")
    training.add_argument("--full-vocabulary", action="store_true", help="softmax over all token types")
    training.add_argument("--double", action="store_true", help="compute in float64")
    training.add_argument("--out", type=Path, default=Path("outputs/one_layer"), help="folder (default: %(default)s)")

    command = commands.add_parser("predict", parents=[task], help="the theory's attention at a loss, without training")
    command.add_argument("--ratio", type=_POSITIVE, nargs="+", default=[0.1, 1.0, 5.0, 10.0, 100.0])
    command.set_defaults(run=predict)

    circuits = Parser(add_help=False)
    circuits.add_argument("--parametrization", choices=PARAMETRIZATIONS, default="CACO", help="(default: CACO)")

    command = commands.add_parser("train", parents=[circuits, task, training], help="train one setting")
    command.add_argument("--ratio", type=_POSITIVE, default=1.0, help="QK rate over OV rate (default: 1)")
    command.add_argument("--ratio-end", type=_POSITIVE, help="ratio at the end of a linear ramp")
    command.add_argument("--ramp-steps", type=_AT_LEAST_0, default=0, help="steps of the ramp")
    command.set_defaults(run=train_one)

    command = commands.add_parser("figure2", parents=[task, training], help="the eight maps of the paper's Figure 2")
    command.set_defaults(run=figure2, parametrization="CACO")

    command = commands.add_parser("sweep", parents=[circuits, task, training], help="attention against the ratio")
    command.add_argument("--ratio", type=_POSITIVE, nargs="+", default=[0.1, 0.3, 1.0, 3.0, 10.0, 30.0])
    command.set_defaults(run=sweep_ratios)
    return main


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status: 2, with one line on stderr, for a user's mistake."""
    return run_command(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
