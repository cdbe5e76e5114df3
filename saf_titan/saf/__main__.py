"""Apply the method to files: calibrate a checkpoint, look at plans and statistics, try other selections.

    python -m saf_titan.saf calibrate CHECKPOINT --selector kl,output_error --out stats.safetensors
    python -m saf_titan.saf show PLAN
    python -m saf_titan.saf diff PLAN PLAN
    python -m saf_titan.saf explain STATS --plan PLAN
    python -m saf_titan.saf select STATS --rate 0.5 --selector kl --step 1000 --out plan.safetensors
    python -m saf_titan.saf fit STATS --method adam400
    python -m saf_titan.saf apply CHECKPOINT PLAN --out CHECKPOINT
    python -m saf_titan.saf export CHECKPOINT --out model.safetensors
    python -m saf_titan.saf restore model.safetensors --out full.safetensors
    python -m saf_titan.saf verify CHECKPOINT

A freeze writes PLAN and STATS to <run>/saf/step-<step>/{plan,stats}.safetensors; CHECKPOINT is a folder
<run>/checkpoint/step-<step>.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

from saf_titan.config.own_sections import SafSection
from saf_titan.fields.command_line import Parser, note_unused, run_command, value_of
from saf_titan.fields.convert import describe, field_types
from saf_titan.fields.docs import field_docs
from saf_titan.fields.ranges import NOT_NEGATIVE, POSITIVE
from saf_titan.heads.counts import head_count
from saf_titan.heads.names import Head, head_name, parse_heads
from saf_titan.saf.calibrate.calibration import Calibration, CalibrationRecord
from saf_titan.saf.calibrate.model_identity import WEIGHTS, require_same_model
from saf_titan.saf.fit.fit import fit_heads
from saf_titan.saf.fit.pattern import CompactPattern
from saf_titan.saf.install.checkpoint import (
    apply_plan,
    checkpoint_identity,
    export_compact,
    read_checkpoint,
    restore_full,
    write_checkpoint,
)
from saf_titan.saf.install.integrity import damages, require_complete
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings
from saf_titan.saf.select.ranking import live_heads, require_live
from saf_titan.saf.show.explain import explain
from saf_titan.saf.show.plan_text import pattern_columns, plan_diff, plan_map, plan_table


def calibrate(args: argparse.Namespace) -> int:
    # the import of the model code is slow, and only this command needs it
    from saf_titan.config import load_config
    from saf_titan.run.offline import calibrate_checkpoint
    from saf_titan.saf.calibrate.progress import TimedProgress

    # checked first, so that a wrong folder is not reported as a missing config.toml
    require_complete(args.checkpoint)
    given = {"data.path": args.data, "saf.calibration_sequences": args.sequences}
    overrides = [f"--{key}={value}" for key, value in given.items() if value is not None]
    # <run>/config.toml of <run>/checkpoint/step-N
    run = load_config(args.config or args.checkpoint.resolve().parent.parent / "config.toml", overrides)
    progress = TimedProgress(partial(print, file=sys.stderr), every=2.0)
    calibration = calibrate_checkpoint(run, args.checkpoint, progress, selectors=args.selector)
    calibration.save(args.out)
    record, live = calibration.record, int(calibration.live_LH.sum())
    print(
        f"{live} live heads on {record.num_sequences} sequences of {record.seq_len} tokens; scores "
        f"{', '.join(calibration.all_scores())}; wrote {args.out}"
    )
    return 0


def show(args: argparse.Namespace) -> int:
    plan = StaticPlan.load(args.plan)
    calibration = Calibration.load(args.stats) if args.stats else None
    if calibration is not None:
        _compare(plan.record, args.plan, calibration.record, args.stats)
    print(plan_table(plan), plan_map(plan, calibration), sep="\n\n")
    if args.png:
        if calibration is None:
            raise ValueError("--png needs the scores of --stats")
        # a plotting library is slow to import
        from saf_titan.saf.show.picture import save_picture

        save_picture(args.png, plan, calibration)
        print(f"\nwrote {args.png}")
    return 0


def diff(args: argparse.Namespace) -> int:
    """Print the differences; return the exit status as diff(1) does: 0 for equal plans, 1 for different ones."""
    lines = plan_diff(StaticPlan.load(args.first), StaticPlan.load(args.second))
    print("\n".join(lines) or "the plans are equal")
    return int(bool(lines))


def explain_ranking(args: argparse.Namespace) -> int:
    plan = StaticPlan.load(args.plan) if args.plan else None
    calibration = Calibration.load(args.stats)
    if plan is not None:
        _compare(plan.record, args.plan, calibration.record, args.stats)
    print(explain(calibration, selector=args.selector, plan=plan, top=args.top))
    return 0


def select(args: argparse.Namespace) -> int:
    calibration = Calibration.load(args.stats)
    num_heads = calibration.live_LH.numel()
    if head_count(num_heads, args.rate, args.rounding) == 0:
        raise ValueError(f"--rate {args.rate:g} means none of the {num_heads} heads; raise it")
    settings = PlanSettings(**{name: getattr(args, name) for name in field_types(PlanSettings)})
    for names, reason in settings.without_effect():
        note_unused(args, names, reason)
    base = StaticPlan.load(args.base) if args.base else None
    if base is not None:
        _compare(base.record, args.base, calibration.record, args.stats)
    plan = make_plan(calibration, settings, step=args.step, base_plan=base)
    plan.save(args.out)
    print(plan_table(plan), f"wrote {args.out}", sep="\n\n")
    return 0


def fit(args: argparse.Namespace) -> int:
    calibration = Calibration.load(args.stats)
    heads = args.heads or live_heads(calibration)
    require_live(calibration, heads)
    start = time.perf_counter()
    result = fit_heads(calibration, heads, method=args.method)
    seconds = time.perf_counter() - start
    print(f"{'head':<8}{'fit KL':>9}{'residual':>10}{'alpha range':>13}{'rho range':>11}{'heavy':>7}{'rough':>8}")
    for n, (layer, head) in enumerate(heads):
        shape = CompactPattern(result.alpha_HT[n], result.rho_HT[n]).describe()
        print(
            f"{head_name(layer, head):<8}{result.kl_H[n].item():>9.4f}{result.residual_H[n].item():>10.1e}"
            f"{pattern_columns(shape)}"
        )
    print(f"{len(heads)} heads in {seconds:.1f} s, {result.iterations} iterations of {args.method}")
    return 0


def apply(args: argparse.Namespace) -> int:
    state = read_checkpoint(args.checkpoint)
    plan = StaticPlan.load(args.plan)
    # of the weights as they are, before any are zeroed
    identity = checkpoint_identity(state)
    changed = apply_plan(state, plan, args.num_heads)
    note = require_same_model(plan.record.model, identity, source=str(args.plan), model=str(args.checkpoint))
    if note is not None:
        print(f"note: {note}", file=sys.stderr)
    write_checkpoint(state, args.out)
    print(f"zeroed the static rows of {len(changed)} tensors and added the plan; wrote {args.out}")
    return 0


def export(args: argparse.Namespace) -> int:
    sizes = export_compact(args.checkpoint, args.out, args.num_heads)
    print(f"wrote {args.out}: {sizes[1]:,} of {sizes[0]:,} parameters, and the plan")
    return 0


def restore(args: argparse.Namespace) -> int:
    plan = restore_full(args.model, args.out)
    print(f"wrote {args.out}: all rows (zeros for {len(plan.heads)} static heads) and the plan")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Print every fault; return the exit status: 0 for an intact checkpoint, 1 for a damaged one."""
    faults = list(damages(args.checkpoint))
    print(*faults or [f"{args.checkpoint} holds what was written"], sep="\n")
    return 1 if faults else 0


def _compare(then: CalibrationRecord, source: Path, now: CalibrationRecord, file: Path) -> None:
    """Refuse files of two models, and say on stderr if one of them does not tell its model.

    Files of one run are of different steps and so of different weights, which is not worth a word.
    """
    known = [None if record.model is None else {**record.model, WEIGHTS: ""} for record in (then, now)]
    note = require_same_model(known[0], known[1], source=str(source), model=str(file))
    if note is not None and None in known:
        print(f"note: {note}", file=sys.stderr)


def _heads(text: str) -> list[Head]:
    try:
        return parse_heads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _selectors(text: str) -> tuple[str, ...]:
    return tuple(_SAF["selector"](name) for name in text.split(","))


def _add_setting(command: argparse.ArgumentParser, name: str, hint: object) -> None:
    """Add the option of one field of `PlanSettings`, with the field's documentation and default."""
    option, default = f"--{name.replace('_', '-')}", getattr(PlanSettings(), name)
    doc = field_docs(PlanSettings)[name].replace("%", "%%")
    if name == "heads":
        command.add_argument(option, type=_head_names, default=(), help=doc, metavar="L0H3,L2H1,...")
    elif name == "exclude_layers":
        command.add_argument(option, type=_NUMBER, nargs="*", default=default, help=doc, metavar="LAYER")
    else:
        required, shown = name == "rate", f"{doc} {describe(hint)[0].upper()}{describe(hint)[1:]}; default {default}."
        command.add_argument(option, type=_SAF[name], default=default, required=required, help=shown, metavar="VALUE")


def _head_names(text: str) -> tuple[str, ...]:
    return tuple(head_name(*slot) for slot in _heads(text))


_COUNT = value_of(Annotated[int, POSITIVE])
_NUMBER = value_of(Annotated[int, NOT_NEGATIVE])
_NUM_HEADS_HELP = "query heads per layer; needed for a checkpoint of stock torchtitan, which does not store it"
_SAF = {name: value_of(hint) for name, hint in field_types(SafSection).items()}
"""Parsers of option values, with the types and ranges of the keys of [saf]."""


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog="python -m saf_titan.saf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = main.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("calibrate", help="measure the heads of a checkpoint, as a freeze would")
    command.add_argument("checkpoint", type=Path, help="folder of a trainer's checkpoint, of any number of ranks")
    command.add_argument("--config", type=Path, help="TOML file of the run (default: the run's own config.toml)")
    command.add_argument("--data", help="folder of token shards (default: data.path of the configuration)")
    command.add_argument("--sequences", type=_SAF["calibration_sequences"], metavar="N", help="number of sequences")
    command.add_argument(
        "--selector",
        type=_selectors,
        default=(),
        metavar="NAME,NAME,...",
        help="also measure the scores of these selectors (default: saf.selector of the configuration)",
    )
    command.add_argument("--out", type=Path, required=True, help="file to write the statistics to")
    command.set_defaults(run=calibrate)

    command = commands.add_parser("show", help="print a plan as a table and a map of the heads")
    command.add_argument("plan", type=Path)
    command.add_argument("--stats", type=Path, help="statistics of the calibration, to map all heads of the model")
    command.add_argument("--png", type=Path, help="write a heat map of the scores, which needs --stats")
    command.set_defaults(run=show)

    command = commands.add_parser("diff", help="list the differences of two plans; status 1 if there are any")
    command.add_argument("first", type=Path)
    command.add_argument("second", type=Path)
    command.set_defaults(run=diff)

    command = commands.add_parser("explain", help="list every head with all its scores, and the rank correlations")
    command.add_argument("stats", type=Path)
    command.add_argument("--selector", default="variance", help="the score that orders the heads (default: variance)")
    command.add_argument("--plan", type=Path, help="mark the heads of a plan")
    command.add_argument("--top", type=_NUMBER, default=0, help="show only this many heads; 0: all")
    command.set_defaults(run=explain_ranking)

    command = commands.add_parser("select", help="make a plan from a calibration")
    command.add_argument("stats", type=Path)
    command.add_argument("--out", type=Path, required=True, help="file to write the plan to")
    for name, hint in field_types(PlanSettings).items():
        _add_setting(command, name, hint)
    command.add_argument("--step", type=_SAF["step"], default=0, help="training step that the plan records")
    command.add_argument("--base", type=Path, help="plan of the heads that are static already")
    command.set_defaults(run=select)

    command = commands.add_parser("fit", help="fit a pattern to each head and print how well it fits")
    command.add_argument("stats", type=Path)
    command.add_argument("--heads", type=_heads, default=[], help="L0H3,L2H1,... (default: all live heads)")
    command.add_argument("--method", type=_SAF["fit_method"], default="lbfgs", help="lbfgs, ipf or adam400")
    command.set_defaults(run=fit)

    command = commands.add_parser("apply", help="write a checkpoint with a plan in it, as a freeze in training would")
    command.add_argument("checkpoint", type=Path)
    command.add_argument("plan", type=Path)
    command.add_argument("--num-heads", type=_COUNT, help=_NUM_HEADS_HELP)
    command.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint")
    command.set_defaults(run=apply)

    command = commands.add_parser("export", help="write the weights of a frozen checkpoint that are still in use")
    command.add_argument("checkpoint", type=Path, help="folder of a checkpoint, or a file that restore wrote")
    command.add_argument("--num-heads", type=_COUNT, help=_NUM_HEADS_HELP)
    command.add_argument("--out", type=Path, required=True, help="safetensors file")
    command.set_defaults(run=export)

    command = commands.add_parser("restore", help="undo export, with zeros where rows were removed")
    command.add_argument("model", type=Path)
    command.add_argument("--out", type=Path, required=True, help="safetensors file")
    command.set_defaults(run=restore)

    command = commands.add_parser("verify", help="compare a checkpoint with its checksums; status 1 if it is damaged")
    command.add_argument("checkpoint", type=Path)
    command.set_defaults(run=verify)
    return main


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit status: 2, after a message of one line, for a mistake of the user."""
    return run_command(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
