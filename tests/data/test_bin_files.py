"""The files of nanoGPT, llm.c and modded-nanogpt are read as they are, and what is no such file is one clear error.

Covers data/corpus.py.
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rust_data.tokenize import main as tokenize_main
from saf_titan.data.bin_files import find_files, fingerprint, hold_out, read_token_file
from saf_titan.data.corpus import open_corpus, open_stream
from saf_titan.data.shards import Segment
from tests.data.corpus import shard_bytes

IDS = [(7 * i) % 50257 for i in range(3000)]


def headerless(ids: Sequence[int]) -> bytes:
    """A file of nanoGPT: the ids alone."""
    return np.asarray(ids, dtype="<u2").tobytes()


def llm_c(ids: Sequence[int], width: int = 2) -> bytes:
    """A file of llm.c or modded-nanogpt: three words of its header are set."""
    magic, version = {2: (20240520, 1), 4: (20240801, 7)}[width]
    return struct.pack("<3i", magic, version, len(ids)).ljust(1024, b"\0") + np.asarray(ids, f"<u{width}").tobytes()


def ours(ids: Sequence[int]) -> bytes:
    """A shard of rust_data without its manifest."""
    return shard_bytes(ids, width=2, vocab_size=50257, eot=50256)


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / f"{name}.bin").write_bytes(content)
    return folder


@pytest.mark.parametrize("form", [headerless, llm_c, ours, lambda ids: llm_c(ids, 4)], ids=["", "llm.c", "ours", "u32"])
def test_every_form_gives_its_ids(tmp_path: Path, form) -> None:
    write(tmp_path, train=form(IDS), val=form(IDS[:100]))
    vocab_size = 0 if form is ours else 50257
    assert open_stream(tmp_path, "train", vocab_size=vocab_size).read(0, 3000).tolist() == IDS
    assert open_stream(tmp_path, "val", vocab_size=vocab_size).read(0, 100).tolist() == IDS[:100]
    corpus = open_corpus(tmp_path, vocab_size=vocab_size)
    assert (corpus.vocab_size, corpus.eot) == (50257, 50256 if form is ours else None)


@pytest.mark.parametrize(
    ("names", "train", "val"),
    [
        (["train", "val"], ["train"], ["val"]),
        (["fineweb_train_000001", "fineweb_train_000002", "fineweb_val_000000"], [0, 1], [2]),
        (["tiny_shakespeare_val", "tiny_shakespeare_train"], [1], [0]),
        (["TRAIN", "Val"], [0], [1]),
        (["b", "a"], ["a", "b"], []),
        (["evaluation", "validated"], ["evaluation", "validated"], []),
        (["train", "other", "val"], ["train"], ["val"]),
        ([".train", "_train", "b"], ["b"], []),
    ],
    ids=str,
)
def test_names_tell_the_split(tmp_path: Path, names: list[str], train: list, val: list) -> None:
    write(tmp_path, **{name: headerless([1, 2]) for name in names})
    (tmp_path / "notes.txt").touch()
    found_train, found_val, unused = find_files(tmp_path)
    for found, expected in ((found_train, train), (found_val, val)):
        wanted = [names[entry] if isinstance(entry, int) else entry for entry in expected]
        assert [file.path.stem for file in found] == wanted
    assert unused == (["other.bin"] if "other" in names else [])


def test_a_single_file_and_a_folder_without_validation_hold_out_their_end(tmp_path: Path) -> None:
    write(tmp_path, a=headerless(IDS[:2000]), b=llm_c(IDS[2000:]))
    corpus = open_corpus(tmp_path, vocab_size=50257)
    assert corpus.stream("train").read(0, 2700).tolist() == IDS[:2700]
    assert corpus.stream("val").read(0, 300).tolist() == IDS[2700:]
    assert "the last tenth of the ids, at most 10,000,000, which are not trained on (no file" in corpus.validation
    alone = open_corpus(tmp_path / "a.bin", vocab_size=50257)
    assert (alone.num_tokens("train"), alone.num_tokens("val")) == (1800, 200)
    assert "a single file was given" in alone.validation


def test_an_id_outside_the_vocabulary_is_found_at_its_place_in_the_file(tmp_path: Path) -> None:
    write(tmp_path, a=headerless([*IDS[:995], 60000, 1, 1, 1, 1]))
    stream = open_stream(tmp_path, "val", vocab_size=50257)
    with pytest.raises(ValueError, match=r"a.bin: id 60000 at position 995 .* of 50257; raise data.vocab_size"):
        stream.read(0, len(stream))


def test_at_most_ten_million_are_held_out(tmp_path: Path) -> None:
    # sparse: zeros that take no room on disk
    file = tmp_path / "big.bin"
    with file.open("wb") as stream:
        stream.truncate(2 * 300_000_000)
    train, val = hold_out([read_token_file(file), read_token_file(write(tmp_path, x=headerless(IDS)) / "x.bin")])
    lengths = [sum(segment.stop - segment.start for segment in split) for split in (train, val)]
    assert lengths == [290_003_000, 10_000_000]


def test_the_vocabulary_is_asked_for_where_no_file_tells_it(tmp_path: Path) -> None:
    write(tmp_path, train=headerless(IDS))
    with pytest.raises(ValueError, match=r"set data.vocab_size \(50257 for GPT-2\)"):
        open_corpus(tmp_path)
    write(tmp_path, train=ours(IDS))
    assert open_corpus(tmp_path).vocab_size == 50257
    with pytest.raises(ValueError, match=r"data.vocab_size is 50304, and .* has a vocabulary of 50257; leave"):
        open_corpus(tmp_path, vocab_size=50304)
    write(tmp_path, train=ours(IDS), val=shard_bytes(IDS, width=2, vocab_size=60000, eot=1))
    with pytest.raises(ValueError, match=r"a vocabulary of 50257 and 60000; keep one tokenizer's"):
        open_corpus(tmp_path)


def test_the_flat_form_of_our_tokenizer_tells_its_vocabulary(tmp_path: Path) -> None:
    splits = {
        "train": {"tokens": 4, "documents": 1, "shards": [{"file": "train.bin", "tokens": 4}]},
        "val": {"tokens": 2, "shards": [{"file": "val.bin", "tokens": 2}]},
    }
    meta = {"format": "nanogpt", "dtype": "uint32", "splits": splits, "tokenizer": {"vocab_size": 100000, "eot": 9}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    for name, ids in (("train", [1, 70000, 2, 9]), ("val", [5, 9])):
        (tmp_path / f"{name}.bin").write_bytes(np.asarray(ids, dtype="<u4").tobytes())
    corpus = open_corpus(tmp_path)
    assert (corpus.vocab_size, corpus.eot) == (100000, 9)
    assert corpus.stream("train").read(0, 4).tolist() == [1, 70000, 2, 9]
    (tmp_path / "train.bin").write_bytes(b"\0" * 12)
    with pytest.raises(ValueError, match=r"train.bin: has 3 ids, and by meta.json it has 4; tokenize again"):
        open_corpus(tmp_path)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(ValueError, match=r"meta.json: cannot be read"):
        open_corpus(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (llm_c(IDS)[:-10], r"has 7014 bytes, and by its header \(3000 ids of 2 bytes\) it should have 7024; the file"),
        (
            struct.pack("<3i", 20240520, 3, 5).ljust(1034, b"\0"),
            "has version 3 of its format, and only version 1 can be read",
        ),
        (b"\0" * 11, "has no header, and its 11 bytes are no whole number of ids of 2 bytes"),
    ],
    ids=["cut", "version", "odd"],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, train=content)
    with pytest.raises(ValueError, match=message) as caught:
        find_files(tmp_path)
    assert "train.bin" in str(caught.value)


def test_what_holds_no_token_files_says_what_would(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=r"data.path must be a folder written by `python -m rust_data.tokenize"):
            find_files(path)
    with pytest.raises(ValueError, match=r"a.parquet: is no .bin file of token ids"):
        find_files(tmp_path / "a.parquet")
    # shards that a killed run of the tokenizer has finished
    write(tmp_path, train_000000=ours(IDS))
    (tmp_path / "progress.json").touch()
    with pytest.raises(ValueError, match=r"unfinished; run rust_data.tokenize again with --resume"):
        find_files(tmp_path)


def test_the_fingerprint_is_of_the_ids_and_not_of_the_place(tmp_path: Path) -> None:
    def identity(name: str, ids: Sequence[int], start: int = 0, stop: int | None = None) -> str:
        path = write(tmp_path, **{name: headerless(ids)}) / f"{name}.bin"
        return fingerprint([Segment(read_token_file(path), start, len(ids) if stop is None else stop)])

    many = IDS * 20
    assert identity("a", many) == identity("b", many)
    others = {
        identity("c", [*many[:-1], 7]),
        identity("d", many[:-1]),
        identity("e", [1, *many[1:]]),
        identity("f", many, stop=50000),
        identity("g", many, start=10000),
        identity("h", []),
    }
    assert len(others | {identity("a", many)}) == 7


def test_what_the_tokenizer_writes_in_nanogpts_form_is_read(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be. " * 400)
    out = tmp_path / "corpus"
    assert tokenize_main([str(text), "--out", str(out), "--val-tokens", "500", "--format", "nanogpt"]) == 0
    corpus = open_corpus(out)
    assert (corpus.vocab_size, corpus.eot) == (50257, 50256)
    assert corpus.num_tokens("val") == 500
