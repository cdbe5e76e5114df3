"""Shards read as one stream, and every disagreement between header, manifest and file is one clear error.

Covers data/manifest.py.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from saf_titan.data.corpus import open_stream
from saf_titan.data.shards import verify_shards

Edit = Callable[[Path, str, object], None]
IDS = [(7 * i) % 4999 for i in range(2500)]


@pytest.mark.parametrize("shard_tokens", [1, 7, 1000, 2500, 9999])
@pytest.mark.parametrize("width", [2, 4])
def test_a_stream_is_the_concatenation_of_its_shards(write_corpus, shard_tokens: int, width: int) -> None:
    ids = IDS[:300] if shard_tokens == 1 else IDS
    stream = open_stream(write_corpus(ids, shard_tokens=shard_tokens, width=width), "train")
    assert len(stream) == len(ids)
    for start, stop in [(0, len(ids)), (0, 1), (len(ids) - 1, len(ids)), (5, 250), (99, 101), (8, 8)]:
        np.testing.assert_array_equal(stream.read(start, stop), ids[start:stop])


def test_ids_above_65535_need_and_get_four_bytes(write_corpus) -> None:
    ids = [0, 65535, 65536, 128255]
    stream = open_stream(write_corpus(ids, width=4, vocab_size=128256), "train")
    assert stream.read(0, 4).tolist() == ids
    assert stream.arrays[0].dtype == np.uint32


def test_a_high_id_is_not_a_negative_number(write_corpus) -> None:
    assert open_stream(write_corpus([40000] * 5, vocab_size=50257), "train").read(0, 5).tolist() == [40000] * 5


def test_an_empty_shard_is_passed_over(write_corpus, edit_manifest: Edit) -> None:
    folder = write_corpus(IDS[:20], shard_tokens=10)
    shards = json.loads((folder / "manifest.json").read_text())["splits"]["train"]["shards"]
    empty = {"file": "empty.bin", "tokens": 0, "documents": 0, "sha256": "0" * 64}
    edit_manifest(folder, "splits.train.shards", [shards[0], empty, shards[1]])
    assert open_stream(folder, "train").read(5, 15).tolist() == IDS[5:15]


def test_files_are_mapped_not_read(write_corpus) -> None:
    stream = open_stream(write_corpus(IDS), "train")
    assert all(isinstance(array, np.memmap) for array in stream.arrays)


def test_counts_beyond_two_gib(write_corpus, edit_manifest: Edit) -> None:
    # sparse: 4 GiB of zeros that take no room on disk
    folder = write_corpus([1, 2, 3])
    count = 2**31 + 5
    file = folder / "train_000000.bin"
    with file.open("r+b") as stream:
        stream.seek(8)
        stream.write(struct.pack("<i", 2**31 - 1))
        stream.seek(32)
        stream.write(struct.pack("<Q", count))
        stream.seek(1024 + 2 * (count - 1))
        stream.write(struct.pack("<H", 77))
    edit_manifest(folder, "splits.train.shards.0.tokens", count)
    edit_manifest(folder, "splits.train.tokens", count)
    mapped = open_stream(folder, "train")
    assert len(mapped) == count
    assert mapped.read(count - 2, count).tolist() == [0, 77]


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (0, 20240801, "magic number is 20240801, and by manifest.json it is 20240520"),
        (4, 7, "version is 7"),
        (12, 4, "number of bytes an id is 4"),
        (16, 50257, "vocabulary is 50257"),
        (20, 0, "end-of-text id is 0"),
        (24, 2, "number of documents is 2"),
        (32, 9, "number of ids is 9"),
        (64, 1, "tokenizer is 01000000"),
    ],
)
def test_a_tampered_header_names_file_field_and_both_values(write_corpus, offset: int, value: int, field: str) -> None:
    folder = write_corpus(IDS)
    with (folder / "train_000001.bin").open("r+b") as stream:
        stream.seek(offset)
        stream.write(struct.pack("<i", value))
    with pytest.raises(ValueError, match=field) as caught:
        open_stream(folder, "train")
    assert "train_000001.bin" in str(caught.value)
    assert "tokenize again" in str(caught.value)


@pytest.mark.parametrize("size", [0, 1000, 1024, 1024 + 1999, 1024 + 2001])
def test_a_file_of_the_wrong_size(write_corpus, size: int) -> None:
    folder = write_corpus(IDS)
    file = folder / "train_000000.bin"
    content = file.read_bytes()
    file.write_bytes((content + b"\0")[:size] if size < len(content) + 1 else content + b"\0")
    with pytest.raises(ValueError, match=rf"train_000000.bin: .* {size}"):
        open_stream(folder, "train")


def test_a_missing_shard(write_corpus) -> None:
    folder = write_corpus(IDS)
    (folder / "train_000002.bin").unlink()
    with pytest.raises(ValueError, match=r"train_000002.bin: cannot be read \(No such file"):
        open_stream(folder, "train")


def test_an_id_outside_the_vocabulary_names_file_and_position(write_corpus) -> None:
    folder = write_corpus([*range(1500), 4999, 6000, 3], vocab_size=5000)
    stream = open_stream(folder, "train")
    assert stream.read(0, 1501)[-1] == 4999
    with pytest.raises(
        ValueError, match=r"train_000001.bin: id 6000 at position 501 lies outside the vocabulary of 5000"
    ):
        stream.read(990, 1503)


def test_verification_finds_a_single_changed_bit(write_corpus) -> None:
    folder = write_corpus(IDS, IDS[:10])
    verify_shards(folder)
    file = folder / "train_000001.bin"
    content = bytearray(file.read_bytes())
    content[1500] ^= 1
    file.write_bytes(content)
    open_stream(folder, "train")
    with pytest.raises(ValueError, match=r"train_000001.bin: sha256 is"):
        verify_shards(folder)


def test_parts_of_a_verification_cover_all_shards(write_corpus) -> None:
    folder = write_corpus(IDS, IDS[:10])
    names = [*sorted(path.name for path in folder.glob("*.bin"))]
    for name in names:
        broken = folder / name
        content = broken.read_bytes()
        broken.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        failures = 0
        for part in range(3):
            try:
                verify_shards(folder, part=part, num_parts=3)
            except ValueError:
                failures += 1
        broken.write_bytes(content)
        assert failures == 1, name


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("format", "other", "format is 'other', and 'rust_data.tokens' is expected"),
        ("version", 2, "version is 2, and 1 is expected"),
        ("complete", False, "--resume"),
        ("complete", "yes", "complete is 'yes'"),
        ("dtype", "uint64", "dtype is 'uint64', and must be uint16 or uint32"),
        ("tokenizer", [], r"tokenizer is \[\]"),
        ("tokenizer.vocab_size", "many", "tokenizer.vocab_size is 'many'"),
        ("tokenizer.vocab_size", True, "tokenizer.vocab_size is True"),
        ("splits.train.tokens", 2501, "splits.train.tokens is 2501, and 2500 is expected"),
        ("splits.train.shards.1.tokens", -1, r"splits.train.shards\[1\].tokens is -1"),
        ("splits.train.shards.1", 3, r"splits.train.shards\[1\] must be an object"),
        ("splits", {}, "has no split 'train'"),
    ],
)
def test_a_wrong_manifest_names_the_field(
    write_corpus, edit_manifest: Edit, key: str, value: object, text: str
) -> None:
    folder = write_corpus(IDS)
    edit_manifest(folder, key, value)
    with pytest.raises(ValueError, match=text) as caught:
        open_stream(folder, "train")
    assert "manifest.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100000])
def test_a_manifest_that_is_no_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest.json"):
        open_stream(tmp_path, "train")


def test_a_folder_without_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rust_data.tokenize"):
        open_stream(tmp_path / "nowhere", "train")
    file = tmp_path / "a.parquet"
    file.touch()
    with pytest.raises(ValueError, match=r"rust_data.tokenize"):
        open_stream(file, "train")


def test_the_digest_is_of_the_content_not_of_the_place(write_corpus) -> None:
    first = open_stream(write_corpus(IDS, name="a"), "train").digest
    assert open_stream(write_corpus(IDS, name="b"), "train").digest == first
    assert open_stream(write_corpus(IDS[::-1], name="c"), "train").digest != first
