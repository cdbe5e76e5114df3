"""Does freezing pay for this model, on its data and on this machine?

    python -m saf_titan.study advise RUN|CHECKPOINT
    python -m saf_titan.study advise CONFIG.toml --dry-run    # an estimate from operations, without a checkpoint

The command measures, on this machine and in one process, the time of a step at several rates of static heads, the loss
right after freezing by several selectors, and the cost of the freeze. The folder of a run stands for its newest
checkpoint whose heads are all live. No file is written and no weight is changed.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from saf_titan.config.own_sections import SafSection
from saf_titan.fields.command_line import Parser, run_command, value_of
from saf_titan.fields.convert import field_types
from saf_titan.fields.ranges import Range

_RATE = value_of(Annotated[float, Range(above=0.0, below=1.0)])
_ROUNDS = value_of(Annotated[int, Range(low=2)])
_NATS = value_of(Annotated[float, Range(above=0.0)])
_SAF = {name: value_of(hint) for name, hint in field_types(SafSection).items()}


def advise(args: argparse.Namespace) -> int:
    """Print what was measured and the advice; return the exit status 0."""
    rates = tuple(dict.fromkeys(sorted(args.rates)))
    if args.dry_run:
        from saf_titan.config import load_config
        from saf_titan.study.advise.estimate import estimate

        config = args.path / "config.toml" if args.path.is_dir() else args.path
        print("\n".join(estimate(load_config(config), rates)))
        return 0
    # imported late, because torch takes long to import and mistakes of the command line are reported before
    from saf_titan.analysis.tables import stdout_is_terminal
    from saf_titan.saf.calibrate.progress import TimedProgress
    from saf_titan.study.advise.measure import find_checkpoint, measure
    from saf_titan.study.advise.words import lines

    run, checkpoint = find_checkpoint(args.path, args.config)
    progress: Any = TimedProgress(partial(print, file=sys.stderr, flush=True), every=10.0, work="advise")
    measured = measure(
        run,
        checkpoint,
        rates=rates,
        selectors=tuple(dict.fromkeys(args.selectors)),
        rounds=args.rounds,
        progress=progress,
    )
    print("\n".join(lines(measured, max_rise=args.max_rise, is_terminal=stdout_is_terminal())))
    return 0


def _selectors(text: str) -> tuple[str, ...]:
    return tuple(_SAF["selector"](name) for name in text.split(","))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(_RATE(part) for part in text.split(","))


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog="python -m saf_titan.study advise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument("path", type=Path, metavar="RUN|CHECKPOINT|CONFIG")
    main.add_argument(
        "--dry-run", action="store_true", help="count operations of a configuration, without a checkpoint"
    )
    main.add_argument("--rates", type=_rates, default=(0.1, 0.25, 0.5), metavar="X,...", help="default: 0.1,0.25,0.5")
    main.add_argument(
        "--selectors",
        type=_selectors,
        default=("variance", "kl", "output_error"),
        metavar="NAME,...",
        help="default: variance,kl,output_error",
    )
    main.add_argument("--rounds", type=_ROUNDS, default=5, metavar="N", help="timed steps for each rate; default: 5")
    main.add_argument(
        "--max-rise",
        type=_NATS,
        metavar="NATS",
        help="largest rise of the loss right after freezing; default: what the saved time is worth at the present "
        "slope of the loss",
    )
    main.add_argument("--config", type=Path, metavar="FILE", help="TOML file of the run; default: the run's own")
    main.set_defaults(run=advise)
    return main


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return the exit status: 2, after one line on stderr, for a mistake of the user."""
    return run_command(parser(), argv)
