"""Write text with a checkpoint, using a cache made for static heads.

    python -m saf_titan.generate RUN_DIR --prompt "The history of"
    python -m saf_titan.generate RUN_DIR/checkpoint/step-300 --prompts prompts.txt --temperature 0.8 --top-k 50
    python -m saf_titan.generate HF_DIR --prompt "The history of" --max-new-tokens 200 --stream

A run's folder, or RUN_DIR/checkpoint, stands for the newest checkpoint. HF_DIR is a folder of transformers, for
example one that `python -m saf_titan.hf freeze` wrote, or a .gguf file. The texts go to standard output, all messages
to standard error.
"""

from __future__ import annotations

import argparse
import codecs
import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from saf_titan.fields.command_line import Parser, input_file, note_unused, run_command, value_of
from saf_titan.fields.places import read_utf8
from saf_titan.fields.ranges import NOT_NEGATIVE, POSITIVE

if TYPE_CHECKING:
    from saf_titan.generate.sampling import Sampling


def write_texts(args: argparse.Namespace) -> int:
    from saf_titan.generate.sampling import Sampling

    sampling = Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed)
    prompts = _read_prompts(args)
    if args.stream and len(prompts) > 1:
        raise ValueError(f"--stream shows one text as it grows, but there are {len(prompts)} prompts; omit --stream")
    if sampling.temperature == 0:
        note_unused(args, ["top_k", "top_p", "seed"], "at --temperature 0, which takes the likeliest token")
    if not args.path.exists():
        raise ValueError(f"{args.path} does not exist: give a checkpoint, a run's folder or a folder of transformers")
    # the import of torch is slow, so simple mistakes are reported before it
    from saf_titan.generate.transformers import is_transformers_model

    write = _write_by_transformers if is_transformers_model(args.path) else _write_by_checkpoint
    write(args, prompts, sampling)
    return 0


def _write_by_transformers(args: argparse.Namespace, prompts: list[str], sampling: Sampling) -> None:
    from saf_titan.generate.transformers import TransformersModel

    for option, value in (
        ("--extrapolate", args.extrapolate),
        ("--tokenizer", args.tokenizer),
        ("--config", args.config),
        ("--explain", args.explain),
    ):
        if value:
            raise ValueError(f"{option} is for checkpoints of this trainer, but {args.path} is a model of transformers")
    note_unused(args, ["batch_size"], "on a model of transformers, which writes one text after the other")
    model = TransformersModel(args.path, args.dtype)
    model.require_prompts(prompts, args.max_new_tokens)
    if model.model.plan is not None:
        print(f"{len(model.model.plan.heads)} static heads", file=sys.stderr)
    for number, prompt in enumerate(prompts):
        _print_heading(number, len(prompts))
        print(prompt, end="", flush=True)
        streamer = model.streamer() if args.stream else None
        own = dataclasses.replace(sampling, seed=sampling.seed + number)
        text = model.write(prompt, max_new_tokens=args.max_new_tokens, sampling=own, streamer=streamer)
        if not args.stream:
            print(text)


def _write_by_checkpoint(args: argparse.Namespace, prompts: list[str], sampling: Sampling) -> None:
    from saf_titan.data.tokenizer import find_tokenizer
    from saf_titan.generate.cached_model import CachedModel, length_limit
    from saf_titan.generate.checkpoint import find_source, load_for_generation
    from saf_titan.generate.text import generate, longest_prompt, tokens_needed

    if len(prompts) == 1:
        note_unused(args, ["batch_size"], "on a single prompt")
    source = find_source(args.path, args.config)
    if source.plan is None:
        note_unused(args, ["explain"], f"on {source.checkpoint}, which has no static heads")
    tokenizer = find_tokenizer(Path(source.run.data.path), args.tokenizer, vocab_size=source.run.shape.vocab_size)
    # an empty prompt becomes the token between two documents, after which a new document begins
    ids = [tokenizer.encode(prompt).tolist() or [tokenizer.eot] for prompt in prompts]
    needed = tokens_needed(ids, args.max_new_tokens)
    model = load_for_generation(source, length=needed, extrapolate=args.extrapolate, dtype=args.dtype)
    longest, reason = length_limit(model)
    if needed > longest:
        raise ValueError(
            f"{needed} tokens are more than the model is defined for: {reason}; shorten {longest_prompt(ids)}, lower "
            f"--max-new-tokens{'' if args.extrapolate else ', or give --extrapolate'}"
        )
    print(f"{source.checkpoint}: {len(source.plan.heads) if source.plan else 0} static heads", file=sys.stderr)
    trained = min(source.run.training.seq_len, source.plan.T_fit if source.plan else longest)
    if needed > trained:
        print(f"texts go beyond the {trained} tokens of training: expect a higher loss there", file=sys.stderr)

    def watch(decoder: CachedModel) -> None:
        print(f"cache: {decoder.num_bytes / 2**20:.1f} MiB", file=sys.stderr)
        if args.explain:
            for layer, choices in enumerate(decoder.choices):
                for head, way, why in choices:
                    print(f"L{layer}H{head} {way}: {why}", file=sys.stderr)

    num_tokens, start = 0, time.perf_counter()
    for first in range(0, len(ids), args.batch_size):
        batch = ids[first : first + args.batch_size]
        steps = generate(
            model,
            batch,
            max_new_tokens=args.max_new_tokens,
            sampling=sampling,
            stop=tokenizer.eot,
            vocab_size=tokenizer.vocab_size,
            first_sequence=first,
            watch=watch if first == 0 else None,
        )
        written: list[list[int]] = [[] for _ in batch]
        growing = _GrowingText(sys.stdout)
        if args.stream:
            growing.add(prompts[0].encode())
        for tokens in steps:
            for text, token in zip(written, tokens, strict=True):
                if token is not None:
                    text.append(token)
                    num_tokens += 1
            if args.stream:
                growing.add(tokenizer.decode_bytes([token for token in tokens if token is not None]))
        if args.stream:
            growing.end()
            continue
        for number, text in enumerate(written, start=first):
            _print_heading(number, len(prompts))
            print(prompts[number] + tokenizer.decode(text))
    seconds = time.perf_counter() - start
    print(f"{num_tokens} tokens in {seconds:.1f} s, {num_tokens / seconds:.1f} per second", file=sys.stderr)


class _GrowingText:
    """Writes bytes as text as soon as their characters are complete."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._decoder = out, codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, text: bytes) -> None:
        self._out.write(self._decoder.decode(text))
        self._out.flush()

    def end(self) -> None:
        self._out.write(self._decoder.decode(b"", final=True) + "\n")


def _read_prompts(args: argparse.Namespace) -> list[str]:
    if args.prompt is not None:
        return [args.prompt]
    text = read_utf8(args.prompts)
    # split at line feeds only: splitlines would split a prompt at other separators as well
    prompts: list[str] = text.removesuffix("\n").split("\n")
    if not text:
        raise ValueError(f"{args.prompts} is empty: give one prompt per line")
    return prompts


def _print_heading(number: int, count: int) -> None:
    if count > 1:
        print(f"--- prompt {number + 1} of {count}")


def parser() -> argparse.ArgumentParser:
    main = Parser(
        prog="python -m saf_titan.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count, whole = value_of(Annotated[int, POSITIVE]), value_of(Annotated[int, NOT_NEGATIVE])
    main.add_argument("path", type=Path, metavar="CHECKPOINT|DIR")
    given = main.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", metavar="TEXT", help='how the text begins; "" begins a new document')
    lines = input_file("a UTF-8 text with one prompt per line")
    given.add_argument("--prompts", type=lines, metavar="FILE", help="UTF-8 file with one prompt per line")
    main.add_argument("--max-new-tokens", type=count, default=100, metavar="N", help="tokens to add; default: 100")
    main.add_argument("--temperature", type=float, default=1.0, metavar="X", help="0: the likeliest token; default: 1")
    main.add_argument("--top-k", type=whole, default=0, metavar="K", help="draw from the K likeliest tokens; 0: all")
    main.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw from the fewest tokens with probability P together"
    )
    main.add_argument("--seed", type=whole, default=0, metavar="N", help="prompt i draws with seed N + i; default: 0")
    main.add_argument("--stream", action="store_true", help="show the text while it grows")
    main.add_argument("--batch-size", type=count, default=16, metavar="N", help="prompts at a time; default: 16")
    main.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: that of the run")
    main.add_argument(
        "--extrapolate", action="store_true", help="allow texts longer than the patterns and positions; costs quality"
    )
    main.add_argument("--explain", action="store_true", help="print how each static head decodes, and why")
    main.add_argument("--config", type=Path, metavar="FILE", help="TOML file of the run; default: the run's own")
    main.add_argument("--tokenizer", metavar="NAME|FILE", help="default: that of the run's corpus")
    main.set_defaults(run=write_texts)
    return main


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit status: 2, after a message of one line, for a mistake of the user."""
    return run_command(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
