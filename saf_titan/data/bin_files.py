"""Reads `.bin` files of token ids without a manifest: those of nanoGPT, llm.c and modded-nanogpt, and single shards."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from saf_titan.data.manifest import BYTES_PER_TOKEN, NanoGPTMeta, read_nanogpt_meta
from saf_titan.data.shards import HEADER_BYTES, MAGIC_AND_VERSION, Segment, TokenFile, size_and_head

JOURNAL = "progress.json"
"""Name of the file that `rust_data.tokenize` keeps beside its shards until the corpus is complete."""

HELD_OUT_SHARE = 10
MOST_HELD_OUT = 10_000_000
"""If no file is for validation, one id in HELD_OUT_SHARE is held out, and at most MOST_HELD_OUT ids, as many as
`rust_data.tokenize` holds out by default."""

_PROBES = 8
_PROBE_BYTES = 4096


def find_files(path: Path) -> tuple[list[TokenFile], list[TokenFile], list[str]]:
    """Return the files for training, the files for validation, and the names of `.bin` files that are neither.

    path: a file, which is then the only one for training, or a folder. In a folder, files with the word "val" in their
        name are for validation. Files with the word "train" are for training; if there are none, all others are. Names
        that begin with "." or "_" are ignored.

    Raises:
        ValueError: there is no file to train on, or a file is damaged.
    """
    if path.is_file():
        if path.suffix != ".bin":
            raise ValueError(f"{path}: is no .bin file of token ids; make one from text with {_command(path.parent)}")
        return [read_token_file(path, read_nanogpt_meta(path.parent))], [], []
    if (path / JOURNAL).exists():
        raise ValueError(f"{path}: the corpus is unfinished; run rust_data.tokenize again with --resume")
    try:
        names = sorted(entry for entry in path.iterdir() if entry.suffix == ".bin" and entry.name[0] not in "._")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); {_wanted(path)}") from None
    val = [name for name in names if _has_word("val", name)]
    others = [name for name in names if name not in val]
    train = [name for name in others if _has_word("train", name)] or others
    if not train:
        raise ValueError(f"{path}: holds neither manifest.json nor a .bin file to train on; {_wanted(path)}")
    meta = read_nanogpt_meta(path)
    unused = [name.name for name in others if name not in train]
    return [read_token_file(name, meta) for name in train], [read_token_file(name, meta) for name in val], unused


def read_token_file(path: Path, meta: NanoGPTMeta | None = None) -> TokenFile:
    """Read the header of a file, if it has one, and compare it with the size of the file.

    meta: the contents of meta.json, for a file without a header; None if there is none, and ids then have 2 bytes.

    Raises:
        ValueError: the file cannot be read, has an unknown version, or has another size than it should.
    """
    size, head = size_and_head(path)
    words = np.frombuffer(head, dtype="<i4") if len(head) == HEADER_BYTES else np.zeros(HEADER_BYTES // 4, dtype="<i4")
    for width, (magic, version) in MAGIC_AND_VERSION.items():
        if words[0] != magic:
            continue
        if words[1] != version:
            raise ValueError(f"{path}: has version {words[1]} of its format, and only version {version} can be read")
        is_ours = int(words[3]) == width
        tokens = int(words[8:10].view("<u8")[0]) if is_ours else int(words[2])
        if size != HEADER_BYTES + width * tokens:
            raise ValueError(
                f"{path}: has {size} bytes, and by its header ({tokens} ids of {width} bytes) it should have "
                f"{HEADER_BYTES + width * tokens}; the file was cut short or is damaged: fetch or write it again"
            )
        file = TokenFile(path=path, width=width, header_bytes=HEADER_BYTES, tokens=tokens)
        return replace(file, vocab_size=int(words[4]), eot=int(words[5])) if is_ours else file
    width = BYTES_PER_TOKEN[meta.dtype] if meta else 2
    tokens, rest = divmod(size, width)
    if rest:
        raise ValueError(
            f"{path}: has no header, and its {size} bytes are no whole number of ids of {width} bytes; the file was "
            f"cut short or is no token file"
        )
    file = TokenFile(path=path, width=width, header_bytes=0, tokens=tokens)
    if meta is None:
        return file
    expected = meta.tokens.get(path.name, tokens)
    if expected != tokens:
        raise ValueError(f"{path}: has {tokens} ids, and by {meta.path.name} it has {expected}; tokenize again")
    return replace(file, vocab_size=meta.vocab_size, eot=meta.eot)


def hold_out(files: Iterable[TokenFile]) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Split files into segments for training and for validation.

    Validation gets the last tenth of all ids, at most 10,000,000 of them. A file may be in both splits.
    """
    files = list(files)
    total = sum(file.tokens for file in files)
    border = total - min(total // HELD_OUT_SHARE, MOST_HELD_OUT)
    train, val, first = [], [], 0
    for file in files:
        cut = min(max(border - first, 0), file.tokens)
        train.append(Segment(file, 0, cut))
        val.append(Segment(file, cut, file.tokens))
        first += file.tokens
    return tuple(train), tuple(val)


def fingerprint(segments: Iterable[Segment]) -> str:
    """Return a digest of segments without digests in a manifest: of their lengths and of a sample of their ids.

    The sample is eight pieces of 4 KiB, spread over each segment. The digest is equal for equal ids, wherever the files
    lie. Reading all ids would take minutes for a large corpus, so a change of a few ids may go unnoticed.
    """
    digest = hashlib.sha256()
    for segment in segments:
        length = segment.stop - segment.start
        if not length:
            continue
        ids = segment.file.map(segment.start, segment.stop)
        digest.update(f"{segment.file.width} {length}\n".encode())
        per_probe = _PROBE_BYTES // segment.file.width
        for probe in range(_PROBES):
            start = max(0, length - per_probe) * probe // (_PROBES - 1)
            digest.update(ids[start : start + per_probe].tobytes())
    return digest.hexdigest()


def _has_word(word: str, path: Path) -> bool:
    """Return whether a file name has a whole word: "fineweb_val_000000.bin" has "val", "evaluation.bin" has not."""
    return re.search(rf"(?<![a-z]){word}(?![a-z])", path.stem.lower()) is not None


def _wanted(path: Path) -> str:
    return (
        f"data.path must be a folder written by {_command(path)}, a folder of .bin files of nanoGPT, llm.c or "
        f"modded-nanogpt, or one such file"
    )


def _command(folder: Path) -> str:
    return f"`python -m rust_data.tokenize ... --out {folder}`"
