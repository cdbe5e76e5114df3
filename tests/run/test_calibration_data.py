"""Which held-out sequences a freeze is decided on, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config import ConfigError, RunConfig, load_config
from saf_titan.data.loader import ShardLoader
from saf_titan.run.calibration_data import calibration_loader, read_calibration_data, rounding_line
from tests.data.corpus import write_corpus

T = 8


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    """A corpus whose ids count upwards, with 20 windows for calibration."""
    write_corpus(tmp_path, train=range(20), val=range(40 * T + 1), vocab_size=1000, eot=999)
    words = [f"--data.path={tmp_path}", f"--training.seq_len={T}", "--training.local_batch_size=2"]
    return load_config(None, [*words, "--saf.calibration_sequences=7"])


@pytest.mark.parametrize(("ranks", "taken"), [(1, 7), (2, 8), (3, 9), (4, 8), (8, 8), (20, 20)])
def test_ranks_share_the_sequences_and_the_record_has_all_of_them(run: RunConfig, ranks: int, taken: int) -> None:
    corpus = ShardLoader.Config(path=run.data.path)
    starts, positions = [], set()
    for rank in range(ranks):
        loader = calibration_loader(corpus, run, world_size=ranks, rank=rank)
        data = read_calibration_data(loader, run, world_size=ranks)
        starts += [int(row[0]) for inputs, _ in data.batches for row in inputs["input"]]
        positions.add(data.positions)
    # every rank knows where the sequences of all ranks are, in their order; ids are positions here
    assert positions == {tuple(starts)}
    assert len(set(starts)) == taken
    line = rounding_line(run, ranks)
    assert (line is None) == (taken == 7)
    if line is not None:
        assert f"saf.calibration_sequences = 7 becomes {taken}" in line


def test_too_few_windows_are_told_with_the_number_that_is_needed(run: RunConfig) -> None:
    with pytest.raises(ConfigError, match=r"calibration_sequences = 7: becomes 21 on .* has 20 windows of 8 tokens"):
        calibration_loader(ShardLoader.Config(path=run.data.path), run, world_size=21)


def test_windows_of_the_training_split_leave_the_loader_of_training_alone(tmp_path: Path) -> None:
    write_corpus(tmp_path, train=range(40 * T + 1), val=range(500, 500 + T + 1), vocab_size=1000, eot=999)
    words = [f"--data.path={tmp_path}", f"--training.seq_len={T}", "--saf.calibration_split=train"]
    run = load_config(None, [*words, "--saf.calibration_sequences=6"])
    corpus = ShardLoader.Config(path=run.data.path)
    training = corpus.build(dp_world_size=1, dp_rank=0, seq_len=T, local_batch_size=2)
    data = read_calibration_data(calibration_loader(corpus, run), run)
    starts = [int(row[0]) for inputs, _ in data.batches for row in inputs["input"]]
    assert starts == list(data.positions)
    assert len(set(starts)) == 6
    assert max(starts) < 40 * T
    assert data.source.endswith("(training split)")
    assert training.tokens_given == 0
    # 41 of them are not there
    many = load_config(None, [*words, "--saf.calibration_sequences=41"])
    with pytest.raises(ConfigError, match=r"the training split in .* has 40 windows of 8 tokens"):
        calibration_loader(corpus, many)
