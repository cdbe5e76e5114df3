"""Train the runs of a study, which differ in one thing each, from common checkpoints, and compare them over seeds.

    python -m saf_titan.study STUDY.toml --dry-run        # runs, tokens, time, disk
    python -m saf_titan.study STUDY.toml                  # train what is missing, then table, csv, json and page
    python -m saf_titan.study STUDY.toml --table          # table, csv, json and page of the finished runs; no training
    python -m saf_titan.study advise RUN|CHECKPOINT       # does freezing pay for this model, on this machine?

STUDY is a file or the name of a study that comes with the package. Start the same command again to go on after a stop.
Start it in several processes, or on several machines that share the folder, and they share the runs. An option
--section.key VALUE sets a key of a run's configuration in all runs.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from saf_titan.config import ConfigError, override_table
from saf_titan.config.packaged import STUDIES, packaged_names
from saf_titan.fields.command_line import Parser, value_of
from saf_titan.fields.ranges import POSITIVE
from saf_titan.study.load import read_study
from saf_titan.study.plan import StudyPlan

FAILURE, USER_ERROR = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 done or stopped on request, 1 a run failed, 2 a mistake."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["advise"]:
        from saf_titan.study.advise.command import main as advise

        return advise(words[1:])
    try:
        args, rest = _parser().parse_known_args(words)
        plan = _plan(args, rest)
        if args.dry_run:
            from saf_titan.study.dry_run import describe

            print(describe(plan))
            return 0
        return _work(plan, words, only_table=args.table)
    except (ValueError, OSError) as error:
        print(error if isinstance(error, ConfigError) else f"error: {error}", file=sys.stderr)
        return USER_ERROR


def _plan(args: argparse.Namespace, rest: list[str]) -> StudyPlan:
    study, faults = read_study(args.study)
    launch = {key: value for key in ("nproc_per_node", "device") if (value := getattr(args, key)) is not None}
    study = replace(study, launch=replace(study.launch, **launch))
    out = args.out or Path("outputs") / study.file.stem
    try:
        given = override_table(rest)
    except ConfigError as error:
        faults, given = [*faults, *error.problems], None
    return StudyPlan(study, out, given, arms=args.arms, seeds=args.seeds, faults=faults)


def _work(plan: StudyPlan, words: list[str], *, only_table: bool) -> int:
    # imported late, because torch takes long to import and mistakes of the study file are reported before
    from saf_titan.study.folder import claim
    from saf_titan.study.launch import Failed, Launcher, Stopped
    from saf_titan.study.output import write_results
    from saf_titan.study.work import work

    def say(line: str) -> None:
        print(line, flush=True)

    status = 0
    if not only_table:
        _require_start(plan)
        claim(plan.out, plan.study.file.stem)
        try:
            with Launcher(plan.study.launch) as launcher:
                work(plan, launcher, say)
        except Stopped as stop:
            say(f"Stopped{f': {stop}' if str(stop) else ''}; {_same_command(words)} goes on from there")
            return 0
        except Failed as error:
            print(f"error: {error}", file=sys.stderr)
            status = FAILURE
    table, files = write_results(plan)
    say(table)
    say(f"wrote {', '.join(map(str, files))}")
    return status


def _require_start(plan: StudyPlan) -> None:
    """Raise ConfigError, before anything is trained, if data or checkpoints are missing or of no use to the arms."""
    from saf_titan.data.checks import inspect_data
    from saf_titan.study.parents import missing_weights, parent_problems

    problems = [*parent_problems(plan), *missing_weights(plan)]
    compared = set()
    for run in plan.runs:
        config = plan.config(run)
        # runs share their files, which are read once here; each run compares them again when it begins, perhaps on
        # another machine
        digests = config.data.verify and config.data.path not in compared
        problems += inspect_data(config, plan.study.launch.world_size, digests=digests)[1]
        compared |= {config.data.path} if digests else set()
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def _same_command(words: list[str]) -> str:
    return f"python -m saf_titan.study {shlex.join(words)}"


def _parser() -> Parser:
    parser = Parser(
        prog="python -m saf_titan.study",
        description=__doc__,
        epilog=f"studies that come with the package: {', '.join(packaged_names(STUDIES))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # with abbreviations, --section.key could be taken for the beginning of an option of the study
        allow_abbrev=False,
    )
    parser.add_argument("study", metavar="STUDY", help="TOML file, or the name of a study of the package")
    parser.add_argument("--out", type=Path, help="folder of all runs and results (default: outputs/STUDY)")
    parser.add_argument("--dry-run", action="store_true", help="print runs, tokens, time and disk space, and stop")
    parser.add_argument(
        "--table", action="store_true", help="write the results of the finished runs, and train nothing"
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        default=(),
        metavar="ARM",
        help="only these arms, the arms that they refer to, and the baseline",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=(), metavar="SEED", help="only these seeds")
    parser.add_argument(
        "--nproc_per_node", type=value_of(Annotated[int, POSITIVE]), metavar="N", help="ranks of a run on a node"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu"), help="cpu: train on the CPU of a machine that has an accelerator"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
