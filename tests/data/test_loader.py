"""The loader hands out the same sequences whatever the ranks, and resumes at the sequence where it stopped."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torchtitan.components.loss import IGNORE_INDEX

from saf_titan.data.loader import NullTokenizer, ShardLoader

T = 8
TRAIN = list(range(1, 8 * 24 + 1))
VAL = list(range(1000, 1000 + 8 * 9 + 5))


@pytest.fixture
def folder(write_corpus) -> Path:
    return write_corpus(TRAIN, VAL, shard_tokens=50)


def build(
    folder: Path, *, ranks: int = 1, rank: int = 0, batch: int = 2, seq_len: int = T, **config: Any
) -> ShardLoader:
    # the arguments torchtitan passes
    return ShardLoader.Config(path=str(folder), **config).build(
        dp_world_size=ranks,
        dp_rank=rank,
        tokenizer=NullTokenizer.Config().build(tokenizer_path=""),
        seq_len=seq_len,
        local_batch_size=batch,
        snapshot_every_n_steps=None,
    )


def first_ids(loader: ShardLoader, num_batches: int) -> list[int]:
    """First token of every sequence: it identifies the window."""
    return [int(row[0]) for inputs, _ in islice(loader, num_batches) for row in inputs["input"]]


def global_order(folder: Path, *, ranks: int, batch: int, num_batches: int, skip: int = 0, **config: Any) -> list[int]:
    """The sequences of all ranks, batch by batch, ranks in order."""
    rows = []
    for rank in range(ranks):
        loader = build(folder, ranks=ranks, rank=rank, batch=batch, **config)
        loader.load_state_dict({**loader.state_dict(), "cursor": skip})
        rows.append([first_ids(loader, 1) for _ in range(num_batches)])
    return [token for number in range(num_batches) for rank in range(ranks) for token in rows[rank][number]]


def test_targets_are_the_next_tokens(folder: Path) -> None:
    inputs, targets_BT = next(iter(build(folder, batch=3)))
    x_BT = inputs["input"]
    assert x_BT.shape == targets_BT.shape == (3, T)
    assert x_BT.dtype == targets_BT.dtype == torch.int64
    # the corpus counts upwards
    torch.testing.assert_close(targets_BT, x_BT + 1)
    assert set(inputs) == {"input"}


def test_an_epoch_visits_every_window_once(folder: Path) -> None:
    # 192 tokens: 23 windows of 8, as the 24th lacks its last target
    ids = first_ids(build(folder, batch=1), 23)
    assert sorted(ids) == [1 + T * window for window in range(23)]
    assert ids != sorted(ids)


def test_a_last_target_that_fits_makes_a_window(write_corpus) -> None:
    assert build(write_corpus([*TRAIN, 7])).num_windows == 24


def test_epochs_differ_and_the_first_batch_can_cross_them(folder: Path) -> None:
    ids = first_ids(build(folder, batch=5), 14)
    assert sorted(ids[:23]) == sorted(ids[23:46])
    assert ids[:23] != ids[23:46]


@pytest.mark.parametrize(("ranks", "batch"), [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1), (1, 1), (2, 3)])
def test_the_same_global_order_for_every_number_of_ranks(folder: Path, ranks: int, batch: int) -> None:
    expected = first_ids(build(folder, batch=1), 60)
    assert global_order(folder, ranks=ranks, batch=batch, num_batches=60 // (ranks * batch)) == expected


@pytest.mark.parametrize("consumed", [0, 12, 24, 36, 60])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_resume_with_another_number_of_ranks_equals_the_uninterrupted_order(
    folder: Path, consumed: int, ranks: int
) -> None:
    saved = [build(folder, ranks=2, rank=rank, batch=2) for rank in range(2)]
    for loader in saved:
        first_ids(loader, consumed // 4)
    states = [loader.state_dict() for loader in saved]
    assert states[0] == states[1]
    assert states[0]["cursor"] == consumed
    # three epochs on
    expected = first_ids(build(folder, batch=1), consumed + 72)[consumed:]
    assert global_order(folder, ranks=ranks, batch=2, num_batches=72 // (2 * ranks), skip=consumed) == expected


def test_resume_in_the_middle_of_gradient_accumulation(folder: Path) -> None:
    loader = build(folder)
    first_ids(loader, 5)
    again = build(folder)
    again.load_state_dict(loader.state_dict())
    assert first_ids(again, 4) == first_ids(loader, 4)


def test_state_counts_a_batch_as_soon_as_it_is_given(folder: Path) -> None:
    loader = build(folder, ranks=3, batch=2)
    iterator = iter(loader)
    assert loader.state_dict()["cursor"] == 0
    next(iterator)
    assert loader.state_dict()["cursor"] == 6


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 1}, "data.seed was 1337 when the checkpoint was saved, and is 1 now"),
        ({"shuffle": False}, "data.shuffle was True"),
        ({"seq_len": 4}, "training.seq_len was 8"),
    ],
)
def test_resume_in_another_order_is_refused(folder: Path, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build(folder, **change).load_state_dict(build(folder).state_dict())


def test_resume_on_another_corpus_is_refused(folder: Path, write_corpus) -> None:
    other = write_corpus(TRAIN[::-1], VAL, name="other")
    with pytest.raises(ValueError, match=rf"data.path = {other} holds other training tokens"):
        build(other).load_state_dict(build(folder).state_dict())
    moved = write_corpus(TRAIN, VAL, shard_tokens=50, name="moved")
    build(moved).load_state_dict(build(folder).state_dict())


@pytest.mark.parametrize("state", [{}, {"cursor": 3}])
def test_resume_from_an_unknown_state_is_refused(folder: Path, state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="format of the loader's state was None"):
        build(folder).load_state_dict(state)


def test_held_out_halves_are_disjoint_and_complete(folder: Path) -> None:
    # 77 tokens: 9 windows
    halves = {
        split: first_ids(build(folder, split=split, batch=1, infinite=False, shuffle=False), 99)
        for split in ("calibration", "validation")
    }
    assert halves["calibration"] == [1000 + T * window for window in range(4)]
    assert halves["validation"] == [1000 + T * window for window in range(4, 9)]


def test_one_held_out_window_is_for_the_report(write_corpus) -> None:
    folder = write_corpus(TRAIN, list(range(12)))
    assert build(folder, split="validation", batch=1).num_windows == 1
    with pytest.raises(ValueError, match=r"has 12 tokens, and training.seq_len = 8 needs at least 17"):
        build(folder, split="calibration")


@pytest.mark.parametrize("length", [0, 1, 8])
def test_a_split_too_short_for_one_window(write_corpus, length: int) -> None:
    folder = write_corpus(TRAIN[:length], VAL)
    with pytest.raises(
        ValueError, match=f"split 'train' has {length} tokens, and training.seq_len = 8 needs at least 9"
    ):
        build(folder)


@pytest.mark.parametrize(("ranks", "batch"), [(1, 1), (1, 2), (2, 1), (2, 3), (4, 1), (8, 2)])
@pytest.mark.parametrize(("max_tokens", "num_windows"), [(0, 5), (1, 1), (3 * T, 3), (4 * T - 1, 3), (99 * T, 5)])
def test_a_finite_loader_gives_each_window_once_on_any_number_of_ranks(
    folder: Path, ranks: int, batch: int, max_tokens: int, num_windows: int
) -> None:
    options = {"split": "validation", "shuffle": False, "infinite": False, "max_tokens": max_tokens}
    loaders = [build(folder, ranks=ranks, rank=rank, batch=batch, **options) for rank in range(ranks)]
    batches = [list(loader) for loader in loaders]
    # as many batches on each rank: a forward is a collective
    assert {len(given) for given in batches} == {loaders[0].num_batches}
    rows = [row for given in batches for inputs, y_BT in given for row in zip(inputs["input"], y_BT, strict=True)]
    real = [(x_T, y_T) for x_T, y_T in rows if not (y_T == IGNORE_INDEX).all()]
    assert sorted(int(x_T[0]) for x_T, _ in real) == [1000 + T * window for window in range(4, 4 + num_windows)]
    assert all(torch.equal(y_T, x_T + 1) for x_T, y_T in real)
    # what fills the last batch up goes through the model too
    assert all((x_T >= 0).all() for x_T, _ in rows)


def test_an_infinite_loader_may_be_shorter_than_a_batch(folder: Path) -> None:
    ids = first_ids(build(folder, split="calibration", batch=6), 1)
    assert set(ids) == {1000, 1008, 1016, 1024}


def test_the_window_of_a_sequence(folder: Path) -> None:
    loader = build(folder, split="validation", batch=1)
    assert [1000 + T * loader.window(sequence) for sequence in range(8)] == first_ids(loader, 8)


@pytest.mark.parametrize(("ranks", "batch", "per_step", "expected"), [(1, 1, 2, 6), (1, 2, 4, 4), (2, 1, 3, 3)])
def test_a_finite_loader_stops_after_whole_steps(
    folder: Path, ranks: int, batch: int, per_step: int, expected: int
) -> None:
    options = {"split": "validation", "shuffle": False, "infinite": False, "batches_per_step": per_step}
    for rank in range(ranks):
        loader = build(folder, ranks=ranks, rank=rank, batch=batch, **options)
        assert len(list(loader)) == loader.num_batches == expected


def test_tokens_given_do_not_depend_on_the_batch_of_today(folder: Path) -> None:
    before = build(folder, ranks=2, batch=3)
    first_ids(before, 4)
    assert before.tokens_given == 4 * 2 * 3 * T
    after = build(folder, batch=1)
    after.load_state_dict(before.state_dict())
    first_ids(after, 2)
    assert after.tokens_given == (4 * 2 * 3 + 2) * T


def test_a_vocabulary_larger_than_the_embedding_is_refused(folder: Path) -> None:
    build(folder, vocab_size=5000)
    with pytest.raises(ValueError, match=r"model.vocab_size is 4999, and .* has a vocabulary of 5000"):
        build(folder, vocab_size=4999)


def test_verification_runs_when_asked_for(folder: Path) -> None:
    file = folder / "val_000000.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    build(folder)
    with pytest.raises(ValueError, match="sha256"):
        build(folder, verify=True)


def test_the_validator_can_replace_infinite(folder: Path) -> None:
    config = replace(ShardLoader.Config(path=str(folder), split="validation"), infinite=False)
    assert config.infinite is False
    taken = {"seq_len", "dp_rank", "dp_world_size", "tokenizer", "local_batch_size", "snapshot_every_n_steps"}
    assert taken.isdisjoint(ShardLoader.Config.__dataclass_fields__)


def test_batches_do_not_share_memory_with_the_file(folder: Path) -> None:
    before = (folder / "train_000000.bin").read_bytes()
    inputs, targets_BT = next(iter(build(folder)))
    inputs["input"].zero_()
    targets_BT.zero_()
    assert (folder / "train_000000.bin").read_bytes() == before


def test_the_null_tokenizer_only_knows_its_size() -> None:
    tokenizer = NullTokenizer.Config(vocab_size=50257).build(tokenizer_path="")
    assert tokenizer.get_vocab_size() == 50257
    with pytest.raises(NotImplementedError, match="token shards"):
        tokenizer.encode("text")
