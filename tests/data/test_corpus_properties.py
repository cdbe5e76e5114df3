"""Any corpus cut in any way is read back whole; any damage to its description is a `ValueError`."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saf_titan.data.corpus import open_stream
from saf_titan.data.loader import ShardLoader
from saf_titan.data.windows import permute
from tests.data.corpus import write_corpus

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**40))
def test_any_permutation_is_one(size: int, seed: int, epoch: int) -> None:
    windows_N = permute(np.arange(size), size, seed=seed, epoch=epoch)
    np.testing.assert_array_equal(np.sort(windows_N), np.arange(size))


@quick
@given(size=st.integers(1, 2**40), data=st.data())
def test_elements_of_a_large_permutation_are_different_and_in_range(size: int, data: st.DataObject) -> None:
    elements = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=30, unique=True))
    windows = permute(np.array(elements), size, seed=1, epoch=0).tolist()
    assert len(set(windows)) == len(elements)
    assert all(0 <= window < size for window in windows)


@quick
@given(
    length=st.integers(2, 200),
    shard_tokens=st.integers(1, 60),
    T=st.integers(1, 12),
    ranks=st.integers(1, 4),
    batch=st.integers(1, 5),
    skip=st.integers(0, 3),
)
def test_ranks_together_read_the_order_of_one(
    length: int, shard_tokens: int, T: int, ranks: int, batch: int, skip: int, tmp_path: Path
) -> None:
    if length <= T:
        return
    ids = np.arange(length)
    write_corpus(tmp_path, train=ids, vocab_size=length, eot=0, shard_tokens=shard_tokens)

    def rows(rank: int, ranks: int, batch: int, cursor: int, num_batches: int) -> list[list[list[int]]]:
        loader = ShardLoader.Config(path=str(tmp_path)).build(
            dp_world_size=ranks, dp_rank=rank, tokenizer=None, seq_len=T, local_batch_size=batch
        )
        loader.load_state_dict({**loader.state_dict(), "cursor": cursor})
        batches = list(islice(loader, num_batches))
        for inputs, targets_BT in batches:
            assert (targets_BT - inputs["input"] == 1).all()
        return [inputs["input"].tolist() for inputs, _ in batches]

    cursor = skip * ranks * batch
    together = [rows(rank, ranks, batch, cursor, 3) for rank in range(ranks)]
    order = [row for number in range(3) for rank in range(ranks) for row in together[rank][number]]
    alone = [row for number in rows(0, 1, 1, 0, cursor + len(order)) for row in number]
    assert order == alone[cursor:]
    num_windows = (length - 1) // T
    starts = sorted(row[0] for row in alone[: num_windows * (len(alone) // num_windows)])
    epochs = len(alone) // num_windows
    assert starts == sorted([T * window for window in range(num_windows)] * epochs)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


def places(node: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values of a JSON document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place, *(found for key, value in items for found in places(value, (*place, key)))]


@quick
@given(data=st.data(), value=json_values)
def test_any_edit_of_a_manifest_is_harmless_or_refused(data: st.DataObject, value: Any, tmp_path: Path) -> None:
    ids = np.arange(50)
    write_corpus(tmp_path, train=ids, val=ids[:9], vocab_size=50, eot=0, shard_tokens=20)
    path = tmp_path / "manifest.json"
    root = {"root": json.loads(path.read_text())}
    *parents, last = ("root", *data.draw(st.sampled_from(places(root["root"]))))
    node: Any = root
    for key in parents:
        node = node[key]
    node[last] = value
    path.write_text(json.dumps(root["root"]))
    try:
        stream = open_stream(tmp_path, "train")
    except ValueError:
        return
    # a split may have lost shards as a whole, never part of one
    assert stream.read(0, len(stream)).tolist() == ids[: len(stream)].tolist()


CHECKED_WORDS = [0, 1, 3, 4, 5, 6, 8, 9, *range(16, 24)]


@quick
@given(word=st.sampled_from(CHECKED_WORDS), byte=st.integers(0, 3), bit=st.integers(0, 7))
def test_any_flipped_bit_of_the_header_is_noticed(word: int, byte: int, bit: int, tmp_path: Path) -> None:
    write_corpus(tmp_path, train=np.arange(50), vocab_size=50, eot=0)
    file = tmp_path / "train_000000.bin"
    content = bytearray(file.read_bytes())
    content[4 * word + byte] ^= 1 << bit
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"train_000000.bin: .* manifest.json"):
        open_stream(tmp_path, "train")
