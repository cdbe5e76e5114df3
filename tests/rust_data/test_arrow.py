"""Columns of texts to columns of ids: the ids of `encode_batch`, without copies, and `datasets.Dataset.map`."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from rust_data.tokenizer import Tokenizer

TEXTS = ["hello world", "", "d\u00e9j\u00e0 vu \u6771\u4eac", "<|endoftext|>", "a b c" * 50]


def expected(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text).tolist() for text in texts]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 4), (2, 2), (4, 5)])
def test_a_slice_of_a_column(kind: pa.DataType, start: int, stop: int, gpt2: Tokenizer) -> None:
    ids = gpt2.encode_arrow(pa.array(TEXTS, type=kind)[start:stop])
    assert ids.type == pa.list_(pa.uint16())
    assert ids.to_pylist() == expected(gpt2, TEXTS[start:stop])
    ids.validate(full=True)


def test_chunks_stay(gpt2: Tokenizer) -> None:
    column = pa.chunked_array([TEXTS[:2], [], TEXTS[2:]], type=pa.string())
    ids = gpt2.encode_arrow(column, threads=2)
    assert [len(chunk) for chunk in ids.chunks] == [2, 0, 3]
    assert ids.to_pylist() == expected(gpt2, TEXTS)
    assert gpt2.encode_arrow(pa.chunked_array([], type=pa.string())).to_pylist() == []
    assert gpt2.encode_arrow(pa.array([], type=pa.string())).to_pylist() == []


def test_neither_texts_nor_ids_are_copied(gpt2: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the native call takes lies in the buffer of the texts, and what it gives is the buffer of the ids."""
    seen: list[np.ndarray] = []

    class Native:
        def encode_buffer(self, data: np.ndarray, *rest: Any) -> Any:
            ids, offsets = gpt2.native.encode_buffer(data, *rest)
            seen.extend((data, ids))
            return ids, offsets

    tokenizer = Tokenizer("gpt2")
    monkeypatch.setattr(tokenizer, "native", Native())
    monkeypatch.setattr(Tokenizer, "vocab_size", gpt2.vocab_size)
    texts = pa.array(TEXTS)
    result = tokenizer.encode_arrow(texts)
    assert seen[0].__array_interface__["data"][0] == texts.buffers()[2].address
    assert seen[1].__array_interface__["data"][0] == result.values.buffers()[1].address


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (pa.array(["a", None, "b"]), "row 1 is null"),
        (pa.array([1, 2]), "expected an Arrow array of strings, got int64"),
        (["a"], "expected an Arrow array of strings, got list"),
    ],
)
def test_columns_that_hold_no_texts(texts: Any, message: str, gpt2: Tokenizer) -> None:
    with pytest.raises(ValueError, match=message):
        gpt2.encode_arrow(texts)


def test_bytes_that_are_no_utf8_are_named(gpt2: Tokenizer) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 1, 3], dtype=np.int32)), pa.py_buffer(b"a\xff\xfe")]
    with pytest.raises(ValueError, match="text 1"):
        gpt2.encode_arrow(pa.StringArray.from_buffers(2, buffers[1], buffers[2]))


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    """A data set in files of its own, so that results of an earlier run are not found."""
    made = datasets.Dataset.from_dict({"text": TEXTS * 20, "number": list(range(100))})
    made.save_to_disk(tmp_path / "set")
    datasets.disable_progress_bars()
    return datasets.load_from_disk(tmp_path / "set")


@pytest.mark.parametrize("num_proc", [None, 2])
def test_a_dataset_is_mapped_in_batches(num_proc: int | None, dataset: Any, gpt2: Tokenizer) -> None:
    mapped = dataset.with_format("arrow").map(gpt2.mapper(threads=1), batched=True, batch_size=7, num_proc=num_proc)
    mapped = mapped.with_format(None)
    assert mapped.column_names == ["text", "number", "input_ids"]
    assert mapped.features["input_ids"].feature.dtype == "uint16"
    assert mapped["input_ids"][:] == expected(gpt2, TEXTS) * 20
    assert mapped["number"][:] == list(range(100))
    again = mapped.with_format("arrow").map(gpt2.mapper(to="number"), batched=True).with_format(None)
    assert again.column_names == ["text", "number", "input_ids"]
    assert again["number"][:] == expected(gpt2, TEXTS) * 20


def test_a_mapper_that_was_asked_wrongly(dataset: Any, gpt2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no column 'body'; there are text, number"):
        dataset.with_format("arrow").map(gpt2.mapper("body"), batched=True)
    with pytest.raises(ValueError, match=r'use dataset.with_format\("arrow"\)'):
        dataset.map(gpt2.mapper(), batched=True)


def test_another_vocabulary_under_the_same_name_is_another_result(gpt2: Tokenizer) -> None:
    from datasets.fingerprint import Hasher

    assert Hasher.hash(gpt2.mapper()) == Hasher.hash(Tokenizer("gpt2").mapper())
    other = gpt2.mapper()
    other.sha256 = "another"
    assert Hasher.hash(gpt2.mapper()) != Hasher.hash(other)
