"""Static heads in models of Hugging Face transformers.

    python -m saf_titan.hf calibrate MODEL_DIR --text FILE --sequences 16 --length 512 --out stats.safetensors
    python -m saf_titan.saf select stats.safetensors --rate 0.1 --out plan.safetensors
    python -m saf_titan.hf perplexity MODEL_DIR --text FILE --plan plan.safetensors
    python -m saf_titan.hf freeze MODEL_DIR --plan plan.safetensors --out FROZEN_DIR
    python -m saf_titan.hf replacement MODEL_DIR --stats stats.safetensors --text FILE --out losses.jsonl
    python -m saf_titan.hf evaluate FROZEN_DIR --tasks arc_easy,my_task.yaml
    python -m saf_titan.hf finetune FROZEN_DIR --task sst2 --data train.tsv --eval dev.tsv --out TUNED_DIR
    python -m saf_titan.hf export CHECKPOINT --out MODEL_DIR
    python -m saf_titan.hf import MODEL_DIR --config run.toml --out CHECKPOINT

MODEL_DIR is a folder that transformers' save_pretrained wrote, or a .gguf file. The other commands of
`python -m saf_titan.saf` (show, diff, explain, fit) take these statistics and plans as well.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import logging

from saf_titan.analysis.replacement import replacement_lines, replacement_losses
from saf_titan.config import load_config
from saf_titan.data.excerpts import Excerpts
from saf_titan.fields.command_line import Parser, input_file, input_place, note_unused, run_command, value_of
from saf_titan.fields.convert import field_types
from saf_titan.fields.places import require_file_place, require_new_folder
from saf_titan.hf.arguments import AT_LEAST_2, open_model, require_model
from saf_titan.hf.export import export_checkpoint, import_model
from saf_titan.hf.identity import model_identity
from saf_titan.hf.measure import calibrate_model, compensate, text_loss, write_weights
from saf_titan.hf.task_commands import add_task_commands
from saf_titan.hf.text import longest_text, require_length, shard_windows, text_windows
from saf_titan.hf.tokenizer_files import opening_ids, read_tokenizer
from saf_titan.report.format import count
from saf_titan.run import resume
from saf_titan.saf.calibrate.calibration import Calibration, CalibrationRecord
from saf_titan.saf.calibrate.model_identity import require_same_model
from saf_titan.saf.calibrate.progress import TimedProgress
from saf_titan.saf.fit.registry import CONTENTS, DENSE_CONTENTS
from saf_titan.saf.install.integrity import require_complete
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings


def calibrate(args: argparse.Namespace) -> int:
    require_file_place(args.out)
    model = open_model(args.model)
    windows = _windows(args, model)
    calibration = calibrate_model(
        model,
        windows.tokens_NT,
        positions=windows.positions,
        source=windows.source,
        selectors=args.selector,
        progress=_progress("calibration"),
    )
    calibration.save(args.out)
    print(
        f"{int(calibration.live_LH.sum())} live heads on {len(windows.tokens_NT)} sequences of {args.length} tokens"
        f"{_opening(windows)}; "
        f"scores {', '.join(calibration.all_scores())}; wrote {args.out}"
    )
    return 0


def freeze(args: argparse.Namespace) -> int:
    require_new_folder(args.out)
    plan = StaticPlan.load(args.plan)
    if args.compensate and args.text is None and args.data is None:
        raise ValueError("--compensate solves weights on sequences: give --text or --data")
    if not args.compensate:
        note_unused(args, ["text", "data", "sequences", "length"], "without --compensate, which reads a text")
    model = open_model(args.model)
    _require_no_plan(model, args.model)
    _compare(plan.record, args.plan, model, args.model)
    rows: Any = {}
    if args.compensate:
        args.sequences, args.length = args.sequences or plan.record.num_sequences, args.length or plan.T_fit
        if args.length > plan.T_fit:
            raise ValueError(f"--length {args.length}, but the plan's patterns are fitted to {plan.T_fit} tokens")
        rows = compensate(model, _windows(args, model).tokens_NT, plan)
    model.set_plan(plan)
    write_weights(model, rows)
    model.zero_unused_weights()
    model.save_pretrained(args.out)
    changed = f", new weights for {len(rows)} of them" if args.compensate else ""
    print(f"{len(plan.heads)} static heads{changed}; wrote {args.out}{_copy_tokenizer(args.model, args.out)}")
    return 0


def perplexity(args: argparse.Namespace) -> int:
    plan = StaticPlan.load(args.plan) if args.plan else None
    model = open_model(args.model)
    if plan is not None:
        _require_no_plan(model, args.model)
        _compare(plan.record, args.plan, model, args.model)
        model.set_plan(plan)
    usual = model.plan.T_fit if model.plan is not None else 512
    args.length = args.length or min(usual, longest_text(model) or usual)
    windows = _windows(args, model)
    if plan is not None:
        model.set_plan(None)
    before = text_loss(model, windows.tokens_NT, _progress("perplexity"))
    name = "static heads" if model.plan is not None else "ordinary attention"
    print(
        f"{len(windows.tokens_NT)} windows of {args.length} tokens{_opening(windows)}, {before.num_tokens:,} predicted"
    )
    print(f"{name:<20}NLL {before.nll:.5f}  perplexity {before.perplexity:.3f}")
    if plan is not None:
        model.set_plan(plan)
        after = text_loss(model, windows.tokens_NT, _progress("perplexity"))
        change = 100 * (after.perplexity / before.perplexity - 1)
        print(
            f"{f'{len(plan.heads)} static heads':<20}NLL {after.nll:.5f}  perplexity {after.perplexity:.3f}  "
            f"change {after.nll - before.nll:+.5f} nat, perplexity {change:+.2f} %"
        )
    return 0


def replacement(args: argparse.Namespace) -> int:
    require_file_place(args.out)
    calibration = Calibration.load(args.stats)
    model = open_model(args.model)
    _compare(calibration.record, args.stats, model, args.model)
    args.length = args.length or calibration.seq_len
    if args.length > calibration.seq_len:
        raise ValueError(f"--length {args.length}, but the statistics are of sequences of {calibration.seq_len} tokens")
    windows = _windows(args, model)
    losses = replacement_losses(
        model.attentions,
        calibration,
        lambda: text_loss(model, windows.tokens_NT).nll,
        content=args.content,
        base_plan=model.plan,
        store=args.out,
        resumed=lambda done: print(f"going on with {args.out}, which has {count(done, 'head')}", file=sys.stderr),
        progress=_progress("heads"),
    )
    print(
        f"{len(windows.tokens_NT)} windows of {args.length} tokens{_opening(windows)}: loss {losses.base:.5f} nat; one "
        f"head replaced by content {args.content}, the costliest first"
    )
    print("\n".join(replacement_lines(losses, calibration)))
    return 0


def export(args: argparse.Namespace) -> int:
    require_complete(args.checkpoint)
    run = load_config(args.config or args.checkpoint.resolve().parent.parent / "config.toml", [])
    saved = resume.read_freeze(args.checkpoint)
    if saved.model is not None:
        resume.require_same_settings(saved.model, resume.model_settings(run), source=str(args.checkpoint))
    print(f"wrote {args.out}: {export_checkpoint(run, args.checkpoint, args.out, tokenizer=args.tokenizer)}")
    return 0


def import_weights(args: argparse.Namespace) -> int:
    if Path(args.model).suffix != ".pt":
        require_model(Path(args.model), needed="give a folder of transformers, a .gguf file, or nanoGPT's ckpt.pt")
    print(f"wrote {args.out}: {import_model(load_config(args.config, []), Path(args.model), args.out)}")
    return 0


def _require_no_plan(model: Any, name: str) -> None:
    if model.plan is not None:
        raise ValueError(f"{name} has a plan of {len(model.plan.heads)} static heads already: give the ordinary model")


def _compare(record: CalibrationRecord, file: Path, model: Any, name: str) -> None:
    """Raise ValueError for statistics or a plan of another model; print a note if the weights differ or are unknown."""
    note = require_same_model(record.model, model_identity(model), source=str(file), model=name)
    if note is not None:
        print(f"note: {note}", file=sys.stderr)


def _windows(args: argparse.Namespace, model: Any) -> Excerpts:
    require_length(model, args.length, remedy="lower --length")
    if args.text is not None:
        vocab_size = model.config.vocab_size
        return text_windows(args.text, args.model, args.sequences, args.length, vocab_size=vocab_size)
    opening: tuple[int, ...] = ()
    # shards can be read without a tokenizer
    with suppress(ValueError):
        opening = opening_ids(read_tokenizer(args.model))
    return shard_windows(args.data, args.sequences, args.length, vocab_size=model.config.vocab_size, opening=opening)


def _copy_tokenizer(model: str, out: Path) -> str:
    """Copy the tokenizer of a model into the folder of the new model; return a note if there is none, else ""."""
    try:
        tokenizer = read_tokenizer(model)
    except ValueError as error:
        # a model that was calibrated on shards may have no tokenizer
        return f" without a tokenizer: {error}"
    tokenizer.save_pretrained(out)
    return ""


def _opening(windows: Excerpts) -> str:
    """Return a note of the ids that each window begins with, or "" if the tokenizer puts none there."""
    if not windows.opening:
        return ""
    return f", each of which begins with {' '.join(map(str, windows.opening))} as the tokenizer's texts do"


def _progress(work: str) -> Any:
    return TimedProgress(partial(print, file=sys.stderr), every=2.0, work=work)


def _selectors(text: str) -> tuple[str, ...]:
    read = value_of(field_types(PlanSettings)["selector"])
    return tuple(read(name) for name in text.split(","))


def _add_sequences(command: argparse.ArgumentParser, *, needs_data: bool) -> None:
    data = command.add_mutually_exclusive_group(required=needs_data)
    text, shards = input_file("a UTF-8 text"), input_place("a folder of token shards")
    data.add_argument("--text", type=text, metavar="FILE", help="UTF-8 text, read with the tokenizer of the model")
    data.add_argument("--data", type=shards, metavar="DIR", help="token shards made with the tokenizer of the model")


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog="python -m saf_titan.hf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = main.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("calibrate", help="measure statistics of a model's heads on a text")
    command.add_argument("model", metavar="MODEL_DIR")
    _add_sequences(command, needs_data=True)
    command.add_argument("--sequences", type=AT_LEAST_2, default=16, metavar="N", help="default: 16")
    command.add_argument("--length", type=AT_LEAST_2, default=512, metavar="T", help="tokens a sequence; default: 512")
    command.add_argument(
        "--selector", type=_selectors, default=(), metavar="NAME,...", help="also compute the scores of these selectors"
    )
    command.add_argument("--out", type=Path, required=True, help="file of the statistics")
    command.set_defaults(run=calibrate)

    command = commands.add_parser(
        "freeze", help="write a model with a plan: its heads static, their unused weights zero"
    )
    command.add_argument("model", metavar="MODEL_DIR")
    command.add_argument("--plan", type=Path, required=True)
    command.add_argument("--compensate", action="store_true", help="solve the weights of static heads anew on a text")
    _add_sequences(command, needs_data=False)
    command.add_argument("--sequences", type=AT_LEAST_2, metavar="N", help="default: as the plan's calibration")
    command.add_argument("--length", type=AT_LEAST_2, metavar="T", help="default: as the plan's calibration")
    command.add_argument("--out", type=Path, required=True, help="folder of the new model")
    command.set_defaults(run=freeze)

    command = commands.add_parser("perplexity", help="loss and perplexity on a text, and how a plan changes them")
    command.add_argument("model", metavar="MODEL_DIR")
    _add_sequences(command, needs_data=True)
    command.add_argument("--plan", type=Path, help="compare with these heads static")
    command.add_argument("--sequences", type=AT_LEAST_2, metavar="N", help="default: the whole text")
    command.add_argument("--length", type=AT_LEAST_2, metavar="T", help="tokens a window; default: the plan's, or 512")
    command.set_defaults(run=perplexity)

    command = commands.add_parser(
        "replacement", help="how the loss changes if each head alone is static, and how scores rank it"
    )
    command.add_argument("model", metavar="MODEL_DIR")
    command.add_argument("--stats", type=Path, required=True, help="statistics that calibrate wrote")
    _add_sequences(command, needs_data=True)
    command.add_argument("--sequences", type=AT_LEAST_2, default=8, metavar="N", help="default: 8")
    command.add_argument("--length", type=AT_LEAST_2, metavar="T", help="default: that of the statistics")
    compact = [name for name in CONTENTS if name not in DENSE_CONTENTS]
    command.add_argument("--content", choices=compact, default="mean", help="default: mean")
    command.add_argument(
        "--out", type=Path, required=True, help="file of the losses; if it is unfinished, it is continued"
    )
    command.set_defaults(run=replacement)

    add_task_commands(commands)

    command = commands.add_parser("export", help="write a checkpoint of this trainer as a folder for transformers")
    command.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder <run>/checkpoint/step-<step>")
    command.add_argument("--config", type=Path, help="TOML file of the run (default: the run's own config.toml)")
    command.add_argument("--tokenizer", metavar="NAME|FILE", help="default: that of the run's corpus")
    command.add_argument("--out", type=Path, required=True, help="folder of the model")
    command.set_defaults(run=export)

    command = commands.add_parser("import", help="write weights of transformers or nanoGPT as a checkpoint for a run")
    command.add_argument("model", metavar="MODEL_DIR", help="folder of transformers, or ckpt.pt of nanoGPT")
    command.add_argument(
        "--config", type=Path, required=True, help="TOML file of the run that will start from the checkpoint"
    )
    command.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    command.set_defaults(run=import_weights)
    return main


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit status: 2, after a message of one line, for a mistake of the user."""
    # transformers' progress bars would be printed between our lines
    logging.disable_progress_bar()
    return run_command(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
