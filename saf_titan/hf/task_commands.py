"""The commands `evaluate` and `finetune` of `python -m saf_titan.hf`: models on tasks."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saf_titan.fields.command_line import input_file
from saf_titan.fields.places import require_file_place
from saf_titan.hf.answer_tasks import TASKS
from saf_titan.hf.arguments import AT_LEAST_0, AT_LEAST_1, AT_LEAST_2, POSITIVE, open_model, require_model
from saf_titan.hf.finetune import FinetuneSettings
from saf_titan.hf.finetune import finetune as run_finetuning
from saf_titan.hf.tokenizer_files import read_tokenizer


def evaluate(args: argparse.Namespace) -> int:
    # the harness is an optional dependency, and its import takes seconds
    try:
        import datasets

        from saf_titan.hf.evaluation import evaluate as run_tasks
    except ImportError as error:
        raise ValueError(str(error)) from error
    if args.out is not None:
        require_file_place(args.out)
    datasets.disable_progress_bars()
    device = _device(args.device)
    model = open_model(args.model)
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
    require_model(args.model, needed="give the folder of a model")
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


def _device(name: str | None) -> torch.device:
    """Return the device of this name; without a name, a GPU if there is one, else the CPU.

    Raises ValueError if there is no such device.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {name}: there is no such device here ({reason}); leave it out") from error
    return device


_EXAMPLES = input_file("a file of the task, as its authors published it")


def add_task_commands(commands: Any) -> None:
    """Add the commands `evaluate` and `finetune` to the subparsers of a parser."""
    command = commands.add_parser("evaluate", help="tasks of the evaluation harness (lm-eval)")
    command.add_argument("model", metavar="MODEL_DIR")
    command.add_argument(
        "--tasks", required=True, metavar="NAME|FILE.yaml,...", help="tasks of the harness, or your own"
    )
    command.add_argument("--num-fewshot", type=AT_LEAST_0, metavar="N", help="solved examples per prompt")
    command.add_argument("--limit", type=AT_LEAST_1, metavar="N", help="examples of each task; default: all")
    command.add_argument("--batch-size", type=AT_LEAST_1, default=8, metavar="N", help="default: 8")
    command.add_argument("--device", help="default: cuda if there is one, else cpu")
    command.add_argument("--out", type=Path, metavar="FILE", help="the harness's results as JSON")
    command.set_defaults(run=evaluate)

    command = commands.add_parser("finetune", help="train a model to answer SST-2, BoolQ or QuALITY")
    command.add_argument("model", type=Path, metavar="MODEL_DIR")
    command.add_argument("--task", required=True, choices=TASKS)
    command.add_argument("--data", type=_EXAMPLES, required=True, metavar="FILE", help="the official training file")
    command.add_argument("--eval", type=_EXAMPLES, metavar="FILE", help="the official validation file, used once")
    epochs = command.add_mutually_exclusive_group()
    epochs.add_argument(
        "--epochs", type=AT_LEAST_1, default=3, metavar="N", help="epochs to choose the best from; default: 3"
    )
    epochs.add_argument("--fixed-epochs", type=AT_LEAST_1, metavar="N", help="epochs; the last one is saved")
    command.add_argument("--batch-size", type=AT_LEAST_1, default=16, metavar="N", help="default: 16")
    command.add_argument("--micro-batch", type=AT_LEAST_1, metavar="N", help="texts at a time; default: the batch")
    command.add_argument("--learning-rate", type=POSITIVE, default=2e-5, metavar="X", help="default: 2e-5")
    command.add_argument("--length", type=AT_LEAST_2, metavar="T", help="longest text; default: that of the task")
    command.add_argument("--seed", type=AT_LEAST_0, default=1337, metavar="S", help="default: 1337")
    command.add_argument("--out", type=Path, required=True, help="folder of the new model")
    command.set_defaults(run=finetune)
