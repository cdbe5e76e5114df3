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
import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers.utils import logging

from saf_titan.analysis.replacement import replacement_lines, replacement_losses
from saf_titan.config import load_config
from saf_titan.fields.command_line import Parser, run_command, value_of
from saf_titan.fields.convert import field_types
from saf_titan.fields.ranges import Range
from saf_titan.hf.answer_tasks import TASKS
from saf_titan.hf.export import export_checkpoint, import_model
from saf_titan.hf.finetune import FinetuneSettings
from saf_titan.hf.finetune import finetune as run_finetuning
from saf_titan.hf.measure import calibrate_model, compensate, text_loss, write_weights
from saf_titan.hf.model import load
from saf_titan.hf.text import Windows, shard_windows, text_windows
from saf_titan.hf.tokenizer_files import opening_ids, read_tokenizer
from saf_titan.run.resume import model_identity, read_freeze, require_same_model
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.progress import TimedProgress
from saf_titan.saf.fit.registry import CONTENTS, DENSE_CONTENTS
from saf_titan.saf.install.checkpoint import require_complete
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings


def calibrate(args: argparse.Namespace) -> int:
    model = _load(args.model)
    windows = _windows(args, model)
    calibration = calibrate_model(
        model,
        windows.tokens_NT,
        positions=windows.positions,
        source=windows.source,
        selectors=args.selector,
        progress=_progress(),
    )
    calibration.save(args.out)
    print(
        f"{int(calibration.live_LH.sum())} live heads on {len(windows.tokens_NT)} sequences of {args.length} tokens"
        f"{_behind(windows)}; "
        f"scores {', '.join(calibration.all_scores())}; wrote {args.out}"
    )
    return 0


def freeze(args: argparse.Namespace) -> int:
    plan = StaticPlan.load(args.plan)
    if args.out.exists():
        raise ValueError(f"{args.out} exists already; choose another folder or remove it")
    if args.compensate and args.text is None and args.data is None:
        raise ValueError("--compensate solves weights on sequences: give --text or --data")
    model = _load(args.model)
    _require_no_plan(model, args.model)
    rows: Any = {}
    if args.compensate:
        args.sequences, args.length = args.sequences or plan.record.num_sequences, args.length or plan.T_fit
        rows = compensate(model, _windows(args, model).tokens_NT, plan)
    model.set_plan(plan)
    write_weights(model, rows)
    model.zero_unused_weights()
    model.save_pretrained(args.out)
    # a model that was calibrated on shards may have none
    with suppress(ValueError):
        read_tokenizer(args.model).save_pretrained(args.out)
    changed = f", new weights for {len(rows)} of them" if args.compensate else ""
    print(f"{len(plan.heads)} static heads{changed}; wrote {args.out}")
    return 0


def perplexity(args: argparse.Namespace) -> int:
    plan = StaticPlan.load(args.plan) if args.plan else None
    model = _load(args.model)
    if plan is not None:
        _require_no_plan(model, args.model)
    longest = plan.T_fit if plan else model.plan.T_fit if model.plan else 512
    args.length = args.length or min(longest, getattr(model.config, "max_position_embeddings", longest))
    windows = _windows(args, model)
    before = text_loss(model, windows.tokens_NT, _progress())
    name = "static heads" if model.plan is not None else "ordinary attention"
    print(
        f"{len(windows.tokens_NT)} windows of {args.length} tokens{_behind(windows)}, {before.num_tokens:,} predicted"
    )
    print(f"{name:<20}NLL {before.nll:.5f}  perplexity {before.perplexity:.3f}")
    if plan is not None:
        model.set_plan(plan)
        after = text_loss(model, windows.tokens_NT, _progress())
        change = 100 * (after.perplexity / before.perplexity - 1)
        print(
            f"{f'{len(plan.heads)} static heads':<20}NLL {after.nll:.5f}  perplexity {after.perplexity:.3f}  "
            f"change {after.nll - before.nll:+.5f} nat, perplexity {change:+.2f} %"
        )
    return 0


def replacement(args: argparse.Namespace) -> int:
    calibration = Calibration.load(args.stats)
    model = _load(args.model)
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
        progress=_progress(),
    )
    print(
        f"{len(windows.tokens_NT)} windows of {args.length} tokens{_behind(windows)}: loss {losses.base:.5f} nat; one "
        f"head replaced by content {args.content}, the costliest first"
    )
    print("\n".join(replacement_lines(losses, calibration)))
    return 0


def evaluate(args: argparse.Namespace) -> int:
    # the harness is an optional dependency, and takes seconds to import
    try:
        import datasets

        from saf_titan.hf.evaluation import evaluate as run_tasks
    except ImportError as error:
        raise ValueError(str(error)) from error
    datasets.disable_progress_bars()
    model = _load(args.model)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    found = run_tasks(
        model,
        read_tokenizer(args.model),
        args.tasks.split(","),
        batch_size=args.batch_size,
        limit=args.limit,
        num_fewshot=args.num_fewshot,
    )
    print(found.table)
    if found.num_cut:
        longest = found.results["config"]["max_length"]
        print(f"{found.num_cut} prompts lost their beginning: the longest text of this model has {longest} tokens")
    if args.out is not None:
        args.out.write_text(json.dumps(found.results, indent=2, default=str) + "\n")
        print(f"wrote {args.out}")
    return 0


def finetune(args: argparse.Namespace) -> int:
    if not args.model.is_dir():
        raise ValueError(f"{args.model} is not the folder of a model")
    micro_batch = args.micro_batch or args.batch_size
    settings = FinetuneSettings(
        learning_rate=args.learning_rate,
        batch_size=args.batch_size,
        micro_batch=micro_batch,
        epochs=args.fixed_epochs or args.epochs,
        fixed=args.fixed_epochs is not None,
        length=args.length,
        seed=args.seed,
    )
    found = run_finetuning(
        args.model,
        TASKS[args.task],
        args.data,
        args.out,
        evaluation=args.eval,
        settings=settings,
        say=partial(print, file=sys.stderr, flush=True),
    )
    print(f"epoch {found['epoch']}: dev accuracy {found['dev_accuracy'][found['epoch'] - 1]:.4f}")
    if args.eval is not None:
        hard = f", {found['accuracy_hard']:.4f} on hard questions" if "accuracy_hard" in found else ""
        print(f"{args.eval}: accuracy {found['accuracy']:.4f}{hard}, {found['num_evaluation']:,} questions")
    print(f"wrote {args.out}")
    return 0


def export(args: argparse.Namespace) -> int:
    require_complete(args.checkpoint)
    run = load_config(args.config or args.checkpoint.resolve().parent.parent / "config.toml", [])
    saved = read_freeze(args.checkpoint)
    if saved.model is not None:
        require_same_model(saved.model, model_identity(run), source=str(args.checkpoint))
    print(f"wrote {args.out}: {export_checkpoint(run, args.checkpoint, args.out, tokenizer=args.tokenizer)}")
    return 0


def import_weights(args: argparse.Namespace) -> int:
    print(f"wrote {args.out}: {import_model(load_config(args.config, []), Path(args.model), args.out)}")
    return 0


def _load(name: str) -> Any:
    if not Path(name).exists():
        raise ValueError(f"{name} does not exist: give the folder of a model, or a .gguf file")
    return load(name).eval()


def _require_no_plan(model: Any, name: str) -> None:
    if model.plan is not None:
        raise ValueError(f"{name} has a plan of {len(model.plan.heads)} static heads already: give the ordinary model")


def _windows(args: argparse.Namespace, model: Any) -> Windows:
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and args.length > limit:
        raise ValueError(f"--length {args.length}, but the model has positions for {limit} tokens")
    if args.text is not None:
        return text_windows(args.text, args.model, args.sequences, args.length)
    opening: tuple[int, ...] = ()
    # a model without a tokenizer can still read shards
    with suppress(ValueError):
        opening = opening_ids(read_tokenizer(args.model))
    return shard_windows(args.data, args.sequences, args.length, vocab_size=model.config.vocab_size, opening=opening)


def _behind(windows: Windows) -> str:
    """What to say of the ids that each window begins with."""
    if not windows.opening:
        return ""
    return f", each of which begins with {' '.join(map(str, windows.opening))} as the tokenizer's texts do"


def _progress() -> Any:
    return TimedProgress(partial(print, file=sys.stderr), every=2.0)


def _selectors(text: str) -> tuple[str, ...]:
    read = value_of(field_types(PlanSettings)["selector"])
    return tuple(read(name) for name in text.split(","))


_POSITIVE = value_of(Annotated[float, Range(above=0.0)])
_AT_LEAST_0 = value_of(Annotated[int, Range(low=0)])
_AT_LEAST_1 = value_of(Annotated[int, Range(low=1)])
_AT_LEAST_2 = value_of(Annotated[int, Range(low=2)])


def _add_sequences(command: argparse.ArgumentParser, *, needs_data: bool) -> None:
    data = command.add_mutually_exclusive_group(required=needs_data)
    data.add_argument("--text", type=Path, help="UTF-8 text file, read with the tokenizer of the model")
    data.add_argument("--data", type=Path, help="folder of token shards made with the tokenizer of the model")


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog="python -m saf_titan.hf", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = main.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("calibrate", help="statistics of a model's heads on a text")
    command.add_argument("model", metavar="MODEL_DIR")
    _add_sequences(command, needs_data=True)
    command.add_argument("--sequences", type=_AT_LEAST_2, default=16, metavar="N", help="default: 16")
    command.add_argument("--length", type=_AT_LEAST_2, default=512, metavar="T", help="tokens a sequence; default: 512")
    command.add_argument(
        "--selector", type=_selectors, default=(), metavar="NAME,...", help="adds the scores that these selectors go by"
    )
    command.add_argument("--out", type=Path, required=True, help="file of the statistics")
    command.set_defaults(run=calibrate)

    command = commands.add_parser("freeze", help="a model with a plan in it: unused weights zero, the plan beside them")
    command.add_argument("model", metavar="MODEL_DIR")
    command.add_argument("--plan", type=Path, required=True)
    command.add_argument("--compensate", action="store_true", help="solve the weights of static heads again on a text")
    _add_sequences(command, needs_data=False)
    command.add_argument("--sequences", type=_AT_LEAST_2, metavar="N", help="default: as the plan's calibration")
    command.add_argument("--length", type=_AT_LEAST_2, metavar="T", help="default: as the plan's calibration")
    command.add_argument("--out", type=Path, required=True, help="folder of the new model")
    command.set_defaults(run=freeze)

    command = commands.add_parser("perplexity", help="loss and perplexity on a text, and what a plan changes")
    command.add_argument("model", metavar="MODEL_DIR")
    _add_sequences(command, needs_data=True)
    command.add_argument("--plan", type=Path, help="compare with these heads static")
    command.add_argument("--sequences", type=_AT_LEAST_2, metavar="N", help="default: the whole text")
    command.add_argument("--length", type=_AT_LEAST_2, metavar="T", help="tokens a window; default: that of the plan")
    command.set_defaults(run=perplexity)

    command = commands.add_parser(
        "replacement", help="what the loss loses by each head alone, and how scores rank that"
    )
    command.add_argument("model", metavar="MODEL_DIR")
    command.add_argument("--stats", type=Path, required=True, help="statistics that calibrate wrote")
    _add_sequences(command, needs_data=True)
    command.add_argument("--sequences", type=_AT_LEAST_2, default=8, metavar="N", help="default: 8")
    command.add_argument("--length", type=_AT_LEAST_2, metavar="T", help="default: that of the statistics")
    compact = [name for name in CONTENTS if name not in DENSE_CONTENTS]
    command.add_argument("--content", choices=compact, default="mean", help="default: mean")
    command.add_argument(
        "--out", type=Path, required=True, help="file of the losses; an unfinished one is gone on with"
    )
    command.set_defaults(run=replacement)

    command = commands.add_parser("evaluate", help="tasks of the evaluation harness (lm-eval)")
    command.add_argument("model", metavar="MODEL_DIR")
    command.add_argument(
        "--tasks", required=True, metavar="NAME|FILE.yaml,...", help="of the harness, or defined by you"
    )
    command.add_argument("--num-fewshot", type=_AT_LEAST_0, metavar="N", help="solved examples in a prompt")
    command.add_argument("--limit", type=_AT_LEAST_1, metavar="N", help="examples of each task; default: all")
    command.add_argument("--batch-size", type=_AT_LEAST_1, default=8, metavar="N", help="default: 8")
    command.add_argument("--device", help="default: cuda if there is one, else cpu")
    command.add_argument("--out", type=Path, metavar="FILE", help="the harness's results as JSON")
    command.set_defaults(run=evaluate)

    command = commands.add_parser("finetune", help="train a model to answer SST-2, BoolQ or QuALITY")
    command.add_argument("model", type=Path, metavar="MODEL_DIR")
    command.add_argument("--task", required=True, choices=TASKS)
    command.add_argument("--data", type=Path, required=True, metavar="FILE", help="the official training file")
    command.add_argument("--eval", type=Path, metavar="FILE", help="the official validation file, looked at once")
    epochs = command.add_mutually_exclusive_group()
    epochs.add_argument("--epochs", type=_AT_LEAST_1, default=3, metavar="N", help="the best of so many; default: 3")
    epochs.add_argument("--fixed-epochs", type=_AT_LEAST_1, metavar="N", help="so many, and the last one is taken")
    command.add_argument("--batch-size", type=_AT_LEAST_1, default=16, metavar="N", help="default: 16")
    command.add_argument("--micro-batch", type=_AT_LEAST_1, metavar="N", help="texts at a time; default: the batch")
    command.add_argument("--learning-rate", type=_POSITIVE, default=2e-5, metavar="X", help="default: 2e-5")
    command.add_argument("--length", type=_AT_LEAST_2, metavar="T", help="longest text; default: that of the task")
    command.add_argument("--seed", type=_AT_LEAST_0, default=1337, metavar="S", help="default: 1337")
    command.add_argument("--out", type=Path, required=True, help="folder of the new model")
    command.set_defaults(run=finetune)

    command = commands.add_parser("export", help="a checkpoint of this trainer as a folder that transformers loads")
    command.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="folder <run>/checkpoint/step-<step>")
    command.add_argument("--config", type=Path, help="TOML file of the run (default: the run's own config.toml)")
    command.add_argument("--tokenizer", metavar="NAME|FILE", help="default: that of the run's corpus")
    command.add_argument("--out", type=Path, required=True, help="folder of the model")
    command.set_defaults(run=export)

    command = commands.add_parser(
        "import", help="weights of transformers or nanoGPT as a checkpoint that a run starts from"
    )
    command.add_argument("model", metavar="MODEL_DIR", help="folder of transformers, or ckpt.pt of nanoGPT")
    command.add_argument("--config", type=Path, required=True, help="TOML file of the run that is to start from it")
    command.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    command.set_defaults(run=import_weights)
    return main


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the exit status is 2, after one line, for whatever the user can mend."""
    # its bars would stand between our lines
    logging.disable_progress_bar()
    return run_command(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
