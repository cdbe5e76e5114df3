"""Generated sequences: one cursor for any number of ranks, and seeds that never meet.

Covers data/cursor.py, data/sources.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rust_data import mqar
from saf_titan.config import load_config
from saf_titan.config.own_sections import DataSection
from saf_titan.data.generate import IGNORE_INDEX, generate_rows, training_seed, vocabulary
from saf_titan.data.rows import RowLoader
from saf_titan.data.sources import training_loader, validation_loader

T = 24
MQAR = DataSection(kind="mqar", pairs=3, vocab_size=64, seed=5)
ZOOLOGY = DataSection(kind="mqar", pairs=3, vocab_size=64, zoology=True, zoology_rows=5, seed=1339)
CLASSES = DataSection(kind="class_tokens", classes=3, distinct=2, common=4, counts=(3, 4))


def batches(config: RowLoader.Config, ranks: int, batch: int, number: int, seq_len: int = T) -> torch.Tensor:
    """Inputs and labels of the first batches of all ranks, in the order of the cursor, [sequences, 2, T]."""
    loaders = [
        iter(config.build(dp_world_size=ranks, dp_rank=rank, seq_len=seq_len, local_batch_size=batch))
        for rank in range(ranks)
    ]
    steps = [next(loader) for _ in range(number) for loader in loaders]
    return torch.cat([torch.stack([inputs["input"], labels], dim=1) for inputs, labels in steps])


@pytest.mark.parametrize("data", [MQAR, CLASSES, ZOOLOGY], ids=["mqar", "class_tokens", "zoology"])
def test_any_number_of_ranks_sees_the_same_sequences(data: DataSection) -> None:
    seed = training_seed(data)
    config, seq_len = RowLoader.Config(data=data, seed=seed), T if data.kind == "mqar" else 8
    alone = batches(config, 1, 8, 3, seq_len)
    assert torch.equal(batches(config, 2, 4, 3, seq_len), alone)
    assert torch.equal(batches(config, 4, 1, 6, seq_len), alone)
    inputs_NT, labels_NT = generate_rows(data, seed=seed, first_row=0, rows=24, length=seq_len)
    np.testing.assert_array_equal(alone[:, 0], inputs_NT)
    np.testing.assert_array_equal(alone[:, 1], labels_NT)


def test_a_saved_cursor_goes_on_and_belongs_to_its_data() -> None:
    def build(data: DataSection = MQAR, ranks: int = 1) -> RowLoader:
        config = RowLoader.Config(data=data, seed=data.seed)
        return config.build(dp_world_size=ranks, dp_rank=0, seq_len=T, local_batch_size=4 // ranks)

    whole, first = iter(build()), build()
    expected = [next(whole) for _ in range(3)]
    next(iter(first))
    state = first.state_dict()
    later = build(ranks=2)
    later.load_state_dict(state)
    inputs, labels = next(iter(later))
    assert torch.equal(inputs["input"], expected[1][0]["input"][:2])
    assert torch.equal(labels, expected[1][1][:2])
    assert later.tokens_given == 8 * T
    with pytest.raises(ValueError, match=r"data.seed was 5 when the checkpoint was saved, and is 6 now"):
        build(replace(MQAR, seed=6)).load_state_dict(state)


def test_held_out_sequences_have_seeds_of_their_own() -> None:
    run = load_config(None, ["--data.kind=mqar", "--training.seq_len=64", "--data.seed=7", "--validator.examples=5"])
    training = training_loader(run)
    assert isinstance(training, RowLoader.Config)
    calibration = training.for_calibration(7)
    assert isinstance(calibration, RowLoader.Config)
    assert training.seed == 7
    assert calibration.seed >= 2**63 > training.seed
    assert not torch.equal(batches(training, 1, 4, 1, 64), batches(calibration, 1, 4, 1, 64))
    validation = validation_loader(run)
    assert isinstance(validation, RowLoader.Config)
    finite = replace(validation, infinite=False)
    labels = [
        labels
        for rank in range(2)
        for _, labels in finite.build(dp_world_size=2, dp_rank=rank, seq_len=64, local_batch_size=2)
    ]
    # five examples on two ranks of two: the last batch is filled up with sequences that ask nothing
    assert len(labels) == 4
    assert sum(int((rows != IGNORE_INDEX).any(1).sum()) for rows in labels) == 5


def test_the_answer_of_a_class_is_an_id_behind_all_others_at_the_last_position() -> None:
    inputs_NT, labels_NT = generate_rows(CLASSES, seed=0, first_row=0, rows=200, length=8)
    # 3 x 2 distinct, 4 common, 1 query, 3 answers
    assert vocabulary(CLASSES) == 14
    assert inputs_NT.max() == 10
    assert (labels_NT[:, :-1] == IGNORE_INDEX).all()
    distinct_NT = np.where(inputs_NT < 6, inputs_NT // 2, -1).max(1)
    np.testing.assert_array_equal(labels_NT[:, -1], 11 + distinct_NT)


def test_a_look_up_answers_every_query() -> None:
    inputs_NT, labels_NT = generate_rows(MQAR, seed=9, first_row=3, rows=20, length=T)
    for inputs_T, labels_T in zip(inputs_NT, labels_NT, strict=True):
        value_of = dict(zip(inputs_T[:6:2], inputs_T[1:6:2], strict=True))
        asked = np.flatnonzero(labels_T != IGNORE_INDEX)
        assert len(asked) == 3
        assert [value_of[key] for key in inputs_T[asked]] == labels_T[asked].tolist()


def test_a_vocabulary_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set it to 64 or more"):
        batches(RowLoader.Config(data=MQAR, vocab_size=63), 1, 1, 1)


@pytest.mark.parametrize("fillers", [True, False])
def test_draws_of_the_published_procedure_are_those_of_its_generator(fillers: bool) -> None:
    data = replace(ZOOLOGY, no_fillers=not fillers)
    seed = training_seed(data)
    assert seed == 1_200_000
    # rows 3 to 13: the end of the first draw, the second one, and most of the third
    inputs_NT, labels_NT = generate_rows(data, seed=seed, first_row=3, rows=11, length=T)
    expected = []
    for number in range(3):
        torch.manual_seed(seed + number)
        sizes = {"vocab_size": 64, "length": T, "pairs": 3}
        expected.append(mqar.generate_zoology(5, seed=seed + number, random_fillers=fillers, **sizes))
    np.testing.assert_array_equal(inputs_NT, np.concatenate([rows.inputs for rows in expected])[3:14])
    np.testing.assert_array_equal(labels_NT, np.concatenate([rows.labels for rows in expected])[3:14])


def test_seeds_of_the_published_procedure_never_meet() -> None:
    words = ["--data.kind=mqar", "--data.zoology=true", "--training.seq_len=64", "--validator.examples=7"]
    run = load_config(None, [*words, "--data.seed=1338"])
    training, validation = training_loader(run), validation_loader(run)
    assert isinstance(training, RowLoader.Config)
    assert isinstance(validation, RowLoader.Config)
    calibration = training.for_calibration(1337)
    assert isinstance(calibration, RowLoader.Config)
    assert training.seed == 1_100_000
    assert 2**31 <= calibration.seed < 2**32
    # a validation is one draw, as published
    assert validation.draw == 7
    # the last seed that the configuration allows leaves room for a year of steps
    assert training_seed(replace(run.data, seed=21_337)) + 10**8 < 2**31
