"""Tokenizes text files to shards.

    python -m rust_data.tokenize fineweb-edu/*.parquet --out data/fineweb_edu --val-tokens 10M

Inputs are parquet, jsonl (plain, .gz, .zst) and txt files (one document a file), folders and globs, or
`sample:edu`, the bundled corpus. The val split is the leading whole documents that reach --val-tokens; a document
that is larger than that is split.
"""

import argparse
import json
import sys
import threading
from pathlib import Path
from typing import Any

from rust_data import _native
from rust_data.arguments import count, place, whole
from rust_data.manifest import NAME, NANOGPT_NAME
from rust_data.progress import show
from rust_data.sizes import check_range, format_count
from rust_data.threads import num_threads
from rust_data.tokenizer import Tokenizer
from rust_data.tokenizer_file import file_to_keep, keep_file

FORMATS = ("shards", "nanogpt")
ON_ERROR = ("stop", "skip")
SHARD_TOKENS = 100_000_000
"""Default number of tokens a shard."""
_JOURNAL = "progress.json"
_LISTED = 20
"""Largest number of names that a message lists."""
SAMPLES = {"sample:edu": Path(__file__).parent / "assets" / "sample_edu.parquet"}


def tokenize(
    inputs: str | Path | list[str],
    out: str | Path,
    *,
    tokenizer: str | Path = "gpt2",
    column: str = "text",
    shard_tokens: int = SHARD_TOKENS,
    val_tokens: int = 0,
    seed: int = 0,
    threads: int | None = None,
    part: tuple[int, int] = (0, 1),
    on_error: str = "stop",
    memory: int | None = None,
    resume: bool = False,
    format: str = "shards",
    quiet: bool = True,
) -> dict[str, Any]:
    """Tokenizes `inputs` into shards under `out` and returns the manifest.

    Args:
        inputs: File, folder, glob or `sample:edu`, or a list of them; they are read in the given order.
        out: Directory for the shards; it must not hold a corpus, except with `resume`.
        tokenizer: Name or file, as for `rust_data.Tokenizer`. A tokenizer.json is copied into `out`.
        column: Column or field that holds the text.
        shard_tokens: Tokens in each shard except the last of a split, below 2**31.
        val_tokens: The leading whole documents that reach this many tokens are the val split. If such a document is
            itself larger, val gets this many tokens and train the rest; the manifest records that (`cut_document`).
        seed: 0 keeps the order of the input; any other seed permutes the documents.
        threads: Number of threads; by default the number of CPUs that this process may use.
        part: (i, n): do only the i-th of n disjoint parts, counted from 0.
        on_error: "stop" at the first row without usable text, or "skip" and count such rows.
        memory: Limit in bytes; by default 1 GB, or (threads + 1) * 96 MiB if that is more.
        resume: Continue a run that was killed; the shards are the same as without the kill. Settings and inputs must
            be the same, except that on_error may change from "stop" to "skip".
        format: "shards", or "nanogpt" for flat train.bin and val.bin; a split without tokens has no file.
        quiet: True for no progress on standard error.

    Raises:
        ValueError: for unusable settings, files and rows; the message names them.
        OSError: if a file cannot be read or written.
        KeyboardInterrupt: if interrupted; the run can be resumed.
    """
    inputs = [str(inputs)] if isinstance(inputs, str | Path) else inputs
    if not inputs:
        raise ValueError("inputs: give at least one file, folder or glob")
    if format not in FORMATS:
        raise ValueError(f"format={format!r}: must be one of {', '.join(FORMATS)}")
    loaded = Tokenizer(tokenizer)
    job = _job(
        inputs,
        out,
        tokenizer=loaded,
        column=column,
        shard_tokens=shard_tokens,
        val_tokens=val_tokens,
        seed=seed,
        threads=threads,
        part=part,
        on_error=on_error,
        memory=memory,
        resume=resume,
        format=format,
    )
    # read now, because the file may change during the work, which may take hours
    file = file_to_keep(loaded, Path(out))
    manifest: dict[str, Any] = json.loads(_run(job, quiet))
    keep_file(file, Path(out))
    if not quiet:
        _print_passed_over(job.passed_over(), 0)
    return manifest


def _job(
    inputs: list[str],
    out: str | Path,
    *,
    tokenizer: Tokenizer,
    threads: int | None,
    on_error: str,
    format: str,
    **settings: Any,
) -> _native.TokenizeJob:
    if not str(out):
        raise ValueError("out: empty; give the name of a folder (. for the current one)")
    if on_error not in ON_ERROR:
        raise ValueError(f"on_error={on_error!r}: must be one of {', '.join(ON_ERROR)}")
    threads = num_threads(threads)
    check_range(0, 2**64 - 1, seed=settings["seed"])
    check_range(0, 2**63 - 1, val_tokens=settings["val_tokens"], shard_tokens=settings["shard_tokens"])
    check_range(0, 2**63 - 1, memory=settings["memory"] or 0, part=min(settings["part"]), parts=max(settings["part"]))
    check_range(1, 2**16, threads=threads)
    return _native.TokenizeJob(
        tokenizer.native,
        [str(SAMPLES.get(str(name), name)) for name in inputs],
        Path(out),
        threads=threads,
        nanogpt=format == "nanogpt",
        skip_errors=on_error == "skip",
        **settings,
    )


def _run(job: _native.TokenizeJob, quiet: bool) -> str:
    """Runs the job on another thread, so that this thread can show progress and be interrupted."""
    outcome: list[str | BaseException] = []

    def work() -> None:
        try:
            outcome.append(job.run())
        except BaseException as error:
            outcome.append(error)

    worker = threading.Thread(target=work, name="tokenize")
    worker.start()
    try:
        show(job.progress, worker, sys.stderr if not quiet else None)
    finally:
        job.cancel()
        worker.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _part(text: str) -> tuple[int, int]:
    index, _, parts = text.partition("/")
    if not (index.isdecimal() and parts.isdecimal() and len(parts) < 19 and int(index) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected i/n with 0 <= i < n, such as 0/4")
    return int(index), int(parts)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rust_data.tokenize", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="file, folder, glob or sample:edu")
    add("--out", required=True, type=place, metavar="DIR", help="where to write the shards")
    add(
        "--tokenizer", default="gpt2", metavar="NAME|PATH", help="gpt2, bytes, cl100k_base, ..., a file (default: gpt2)"
    )
    add("--column", default="text", help="column or field with the text (default: text)")
    add("--shard-tokens", type=count, default=SHARD_TOKENS, metavar="N", help="tokens a shard (default: 100M)")
    add("--val-tokens", type=count, default=10_000_000, metavar="N", help="tokens of the val split (default: 10M)")
    add("--seed", type=whole, default=0, metavar="S", help="permute the documents; 0 keeps their order (default)")
    add("--threads", type=whole, metavar="N", help="default: the CPUs this process may use")
    add("--part", type=_part, default=(0, 1), metavar="i/n", help="do only the i-th of n disjoint parts, from 0")
    add("--on-error", choices=ON_ERROR, default="stop", help="at rows without usable text (default: stop)")
    add("--memory", type=count, metavar="BYTES", help="limit of memory (default: 1G, more from 9 threads on)")
    add("--resume", action="store_true", help="continue a run that was killed")
    add("--format", choices=FORMATS, default="shards", help="nanogpt: flat train.bin and val.bin")
    add("--dry-run", action="store_true", help="print what would be read, and stop")
    add("--quiet", action="store_true", help="show no progress")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = vars(parse_args(argv))
    inputs, out, dry_run = args.pop("inputs"), args.pop("out"), args.pop("dry_run")
    try:
        if dry_run:
            _print_plan(inputs, out, args)
            return 0
        manifest = tokenize(inputs, out, **args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = (out / _JOURNAL).exists()
        print(f"interrupted; {f'--resume goes on with {out}' if kept else 'no shard was complete'}", file=sys.stderr)
        return 130
    for name, split in manifest["splits"].items():
        files, documents = len(split["shards"]), split["documents"]
        print(f"{name}: {format_count(split['tokens'])} tokens, {documents} documents, {files} shards in {out}")
    if manifest["splits"]["val"].get("cut_document"):
        print("val ends inside a document that is larger than --val-tokens; train begins with the rest of it")
    _note_unused(args, [source["file"] for source in manifest["sources"]])
    if args["seed"] and sum(source["documents"] for source in manifest["sources"]) < 2:
        print("note: --seed has no effect on a single document", file=sys.stderr)
    skipped = sum(source["skipped"] for source in manifest["sources"])
    broken = [(source["file"], source["error"]) for source in manifest["sources"] if "error" in source]
    if skipped or broken:
        name = NANOGPT_NAME if args["format"] == "nanogpt" else NAME
        print(f"left out: {skipped} rows and {len(broken)} files; {out / name} lists them by file")
        _print_names(broken)
    return 0


def _note_unused(args: dict[str, Any], files: list[str]) -> None:
    """Prints a note for each option that was changed from its default but has no effect on the result."""
    if args["column"] != "text" and all(file.endswith((".txt", ".txt.gz", ".txt.zst")) for file in files):
        print("note: --column has no effect on .txt files, which are one document each", file=sys.stderr)
    if args["format"] == "nanogpt" and args["shard_tokens"] != SHARD_TOKENS:
        print(
            "note: --shard-tokens has no effect on the files of --format nanogpt, which are one for each split; "
            "it only sets how often progress is saved for --resume",
            file=sys.stderr,
        )


def _print_plan(inputs: list[str], out: Path, args: dict[str, Any]) -> None:
    settings = {name: value for name, value in args.items() if name != "quiet"}
    tokenizer = Tokenizer(settings.pop("tokenizer"))
    job = _job(inputs, out, tokenizer=tokenizer, **settings)
    file_to_keep(tokenizer, out)
    files, unreadable = job.plan()
    for path, size, units in files:
        print(f"{path}: {format_count(size)} bytes, {units} units of work")
    _note_unused(args, [path for path, _, _ in files])
    _print_passed_over(job.passed_over(), _LISTED)
    if unreadable:
        print(f"cannot be read: {len(unreadable)}")
        _print_names(unreadable)
    print(f"{len(files)} files, {format_count(sum(size for _, size, _ in files))} bytes -> {out}")
    print(f"tokenizer {tokenizer.name}: {tokenizer.vocab_size} ids, {tokenizer.splitter} splitter")


def _print_passed_over(names: list[tuple[str, str]], listed: int) -> None:
    """Prints how many names in folders and globs were not inputs, and the first `listed` of them."""
    if names and listed:
        print(f"passed over: {len(names)}")
        _print_names(names[:listed])
    elif names:
        print(f"passed over: {len(names)} names in folders or globs (--dry-run lists them)", file=sys.stderr)


def _print_names(names: list[tuple[str, str]]) -> None:
    for name, reason in names[:_LISTED]:
        print(f"  {name}: {reason}")
    if len(names) > _LISTED:
        print(f"  and {len(names) - _LISTED} more")


if __name__ == "__main__":
    sys.exit(main())
