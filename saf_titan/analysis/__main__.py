"""What attention heads contribute, what their sinks do, which keys carry the predictions, and a page about it all.

    python -m saf_titan.analysis contributions MODEL --text FILE [--out FILE]
    python -m saf_titan.analysis sinks MODEL --text FILE [--out FILE]
    python -m saf_titan.analysis interventions MODEL --text FILE --out DIR
    python -m saf_titan.analysis report RUN [--text FILE] [--out FILE] [--heads N]
    python -m saf_titan.analysis report RUN RUN [--out FILE]
    python -m saf_titan.analysis report MODEL --text FILE --out FILE

MODEL is a run's folder, which stands for its newest checkpoint, a checkpoint, a folder of transformers, or a .gguf
file. What is said about the work goes to standard error, tables alone to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saf_titan.analysis.arguments import COUNT, SHARE, WHOLE, add_measurement, add_model, shares, words
from saf_titan.fields.command_line import Parser, note_unused, run_command
from saf_titan.fields.places import require_file_place, require_input_file
from saf_titan.report.format import count

if TYPE_CHECKING:
    from saf_titan.analysis.decoder import AnalysedDecoder
    from saf_titan.data.excerpts import Excerpts


def contributions(args: argparse.Namespace) -> int:
    if args.query is not None and args.query >= args.length:
        raise ValueError(
            f"--query {args.query}, but a sequence has the positions 0 to {args.length - 1}: give one, or raise "
            "--length"
        )
    if args.out is not None:
        require_file_place(args.out)
    decoder, excerpts = _open(args)
    from saf_titan.analysis.contribution_tables import measure_contributions, query_lines, token_shares
    from saf_titan.analysis.tables import stdout_is_terminal

    measured = measure_contributions(
        decoder,
        excerpts.tokens_NT,
        layers=args.layers,
        is_behind_norm=args.behind_norm,
        progress=_progress("contributions"),
    )
    print("\n".join(measured.lines(is_terminal=stdout_is_terminal())))
    if args.query is not None:
        shares = token_shares(
            decoder, excerpts.tokens_NT[:1], args.query, layers=args.layers, is_behind_norm=args.behind_norm
        )
        print()
        print("\n".join(query_lines(decoder, excerpts.tokens_NT[0], shares, is_terminal=stdout_is_terminal())))
    _write(args.out, _about(args, decoder) | measured.to_json())
    return 0


def sinks(args: argparse.Namespace) -> int:
    if args.out is not None:
        require_file_place(args.out)
    decoder, excerpts = _open(args)
    from saf_titan.analysis.sink_tables import measure_sinks
    from saf_titan.analysis.tables import stdout_is_terminal

    measured = measure_sinks(
        decoder,
        excerpts.tokens_NT,
        eps=args.eps,
        layers=args.layers,
        is_behind_norm=args.behind_norm,
        progress=_progress("sinks"),
    )
    print("\n".join(measured.lines(is_terminal=stdout_is_terminal())))
    _write(args.out, _about(args, decoder) | measured.to_json())
    return 0


def interventions(args: argparse.Namespace) -> int:
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out {args.out} is a file: give a folder")
    # a mistake in a name comes before the model is read
    from saf_titan.analysis.interventions import Settings
    from saf_titan.analysis.scores import RANDOM

    settings = Settings(
        grain=args.per,
        metrics=args.metrics,
        **({"ways": args.ways} if args.ways else {}),
        **({"sides": args.sides} if args.sides else {}),
        fractions=args.shares,
        spares_first={"both": (False, True), "kept": (True,), "removable": (False,)}[args.first],
        seeds=tuple(range(args.seeds)),
        layers=args.layers,
        is_behind_norm=args.behind_norm,
    )
    if RANDOM not in settings.metrics:
        note_unused(args, ["seeds"], "without the measure random, the one that is drawn")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {args.out} cannot be made ({error.strerror}): give another folder") from error
    from saf_titan.analysis.intervention_results import FILES, STORE, ranking_lines, share_lines, write_results

    store = args.out / STORE
    for name in (*FILES, STORE):
        require_file_place(args.out / name)
    decoder, excerpts = _open(args)
    from saf_titan.analysis.interventions import measure_interventions, measured_positions
    from saf_titan.analysis.tables import stdout_is_terminal

    rows_N = measured_positions(args.length, args.positions)

    def say_resumed(num_done: int) -> None:
        done, number = count(num_done, "sequence"), len(excerpts.tokens_NT)
        print(f"going on with {store}, which has the results of {done} of {number}", file=sys.stderr)

    try:
        study = measure_interventions(
            decoder,
            excerpts.tokens_NT,
            rows_N,
            settings,
            batch_size=args.batch_size,
            store=store,
            model={"model": str(Path(decoder.name).resolve()), "dtype": args.dtype},
            resumed=say_resumed,
            progress=_progress("interventions"),
        )
    except KeyboardInterrupt:
        print(f"{store} keeps the sequences that are done; the same command goes on from there", file=sys.stderr)
        raise
    print(
        f"{count(len(excerpts.tokens_NT), 'sequence')} of {args.length} tokens, {count(len(rows_N), 'position')} of "
        "each measured, keys "
        f"scored by {settings.grain}; loss of the whole model {study.nll_P.mean():.4f} nat"
    )
    for way in settings.ways:
        for spares_first in settings.spares_first:
            for lines in (ranking_lines, share_lines):
                print()
                print("\n".join(lines(study, way, spares_first, is_terminal=stdout_is_terminal())))
    about = _about(args, decoder) | {"grain": settings.grain, "positions": rows_N.tolist()}
    written = write_results(study, args.out, about)
    print(f"wrote {written[0]} and {written[1]}", file=sys.stderr)
    return 0


def report(args: argparse.Namespace) -> int:
    from saf_titan.report.compare import COMPARISON_FILE, write_comparison
    from saf_titan.report.rows import METRICS_FILE
    from saf_titan.report.write import write_report

    if args.text is None:
        unused = ["sequences", "length", "passage", "behind_norm", "dtype", "config", "tokenizer"]
        note_unused(args, unused, "without --text, which a model is measured on")
    if len(args.models) > 1:
        if args.text is not None:
            raise ValueError("--text is for one run or model; leave it out, and runs are compared by their logs")
        note_unused(args, ["heads"], "on a comparison, which draws no patterns")
        print(write_comparison(args.models, args.out or Path(COMPARISON_FILE)))
        return 0
    (args.model,) = args.models
    if not args.model.exists():
        raise ValueError(f"{args.model} does not exist: give the folder of a run, or a model")
    is_run = (args.model / METRICS_FILE).is_file()
    if not is_run and args.text is None:
        raise ValueError(
            f"{args.model} is no run's folder (it has no {METRICS_FILE}), so a report needs a text: give --text FILE"
        )
    if not is_run and args.out is None:
        raise ValueError("give --out FILE: only a run's report has a place of its own, in the folder of the run")
    if args.text is None:
        print(write_report(args.model, heads=args.heads, out=args.out))
        return 0
    if args.sequences < 2:
        raise ValueError(f"--sequences {args.sequences}: the variance over sequences needs at least 2")
    if args.out is not None:
        require_file_place(args.out)
    decoder, excerpts = _open(args)
    from saf_titan.report import markup
    from saf_titan.report.model_page import model_sections, write_model_report

    measure = {
        "passage_tokens": args.passage,
        "is_behind_norm": args.behind_norm,
        "progress": _progress("report"),
    }
    if is_run:
        sections = model_sections(decoder, excerpts, **measure)
        title = markup.heading(f"Attention of {decoder.name}")
        print(write_report(args.model, heads=args.heads, out=args.out, more=[title, *sections]))
    else:
        note_unused(args, ["heads"], "without a run, whose freezes have patterns")
        print(write_model_report(decoder, excerpts, args.out, **measure))
    return 0


def _open(args: argparse.Namespace) -> tuple[AnalysedDecoder, Excerpts]:
    """The model, and the sequences of the text file."""
    try:
        require_input_file(args.text, "a UTF-8 text")
    except ValueError as error:
        raise ValueError(f"--text: {error}") from error
    from saf_titan.generate.opened import open_decoder

    decoder = open_decoder(
        args.model, length=args.length, config=args.config, tokenizer=args.tokenizer, dtype=args.dtype
    )
    assert decoder.read is not None
    excerpts = decoder.read(args.text, args.sequences, args.length)
    opening = f", each behind {' '.join(map(str, excerpts.opening))}" if excerpts.opening else ""
    print(
        f"{decoder.name}: {count(len(excerpts.tokens_NT), 'sequence')} of {args.length} tokens of {excerpts.source}"
        f"{opening}",
        file=sys.stderr,
    )
    decoder.require_finite(excerpts.tokens_NT)
    if not any(norm is not None for norm in decoder.norms):
        note_unused(args, ["behind_norm"], f"on {decoder.name}, where no norm stands between heads and residual stream")
    return decoder, excerpts


def _about(args: argparse.Namespace, decoder: AnalysedDecoder) -> dict[str, Any]:
    return {
        "model": decoder.name,
        "text": str(args.text),
        "sequences": args.sequences,
        "length": args.length,
        "layers": sorted(decoder.chosen_layers(args.layers)),
    }


def _write(out: Path | None, values: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {out}", file=sys.stderr)


def _progress(work: str) -> Any:
    from saf_titan.saf.calibrate.progress import TimedProgress

    return TimedProgress(partial(print, file=sys.stderr, flush=True), every=10.0, work=work)


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog="python -m saf_titan.analysis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = main.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("contributions", help="what heads and keys contribute to the output of attention")
    add_model(command, sequences=4, length=256)
    command.add_argument("--query", type=WHOLE, metavar="I", help="also print the keys of this position of sequence 0")
    command.add_argument("--out", type=Path, metavar="FILE", help="the numbers as JSON, with those by key and by lag")
    command.set_defaults(run=contributions)

    command = commands.add_parser("sinks", help="how much attention the first position draws, and what it does with it")
    add_model(command, sequences=4, length=256)
    command.add_argument(
        "--eps", type=SHARE, default=0.3, metavar="X", help="mean attention that makes a head a sink; default: 0.3"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="the numbers as JSON")
    command.set_defaults(run=sinks)

    command = commands.add_parser("interventions", help="which measure finds the keys that carry the predictions")
    add_model(command, sequences=8, length=256)
    command.add_argument(
        "--per",
        choices=("token", "head"),
        default="token",
        help="one score of a key for all heads of a layer, or one for each head; default: token",
    )
    command.add_argument(
        "--metrics", type=words, default=(), metavar="NAME,...", help="measures that rank the keys; default: all"
    )
    command.add_argument(
        "--ways", type=words, metavar="NAME,...", help="how keys are removed, of value, edge, mean; default: all"
    )
    command.add_argument(
        "--sides", type=words, metavar="NAME,...", help="which keys are removed, of top, bottom; default: both"
    )
    command.add_argument(
        "--shares",
        type=shares,
        default=(0.01, 0.05, 0.10, 0.20, 0.50),
        metavar="X,...",
        help="shares of the keys of a query to remove; default: 0.01,0.05,0.1,0.2,0.5",
    )
    command.add_argument(
        "--first",
        choices=("both", "kept", "removable"),
        default="both",
        help="whether the first position is kept; default: both",
    )
    command.add_argument(
        "--seeds", type=COUNT, default=3, metavar="N", help="number of seeds of the random control; default: 3"
    )
    command.add_argument(
        "--positions",
        type=COUNT,
        default=64,
        metavar="N",
        help="measure up to N predictions in each sequence; default: 64",
    )
    command.add_argument("--batch-size", type=COUNT, default=4, metavar="N", help="sequences in a batch; default: 4")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    command.set_defaults(run=interventions)

    command = commands.add_parser("report", help="a page about a run, about several runs, or about a model on a text")
    command.add_argument("models", type=Path, nargs="+", metavar="RUN|MODEL", help="several runs are compared")
    command.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text; a run needs none")
    add_measurement(command, sequences=4, length=256)
    command.add_argument(
        "--passage", type=COUNT, default=64, metavar="N", help="show up to N tokens word by word; default: 64"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="default: report.html in a run's folder, comparison.html"
    )
    command.add_argument(
        "--heads",
        type=WHOLE,
        default=8,
        metavar="N",
        help="draw patterns of up to N heads of each freeze; default: 8",
    )
    command.set_defaults(run=report)
    return main


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the exit status is 2, after one line, for whatever the user can mend."""
    return run_command(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
