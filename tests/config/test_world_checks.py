"""The numbers of ranks that a run can be shared by: those that its file promises are among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saf_titan.config import calibration_sequences, check_world_size, load_config

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def promised(path: Path) -> list[int]:
    """Numbers of ranks in the line "Hardware: ..." of a file, or in that of the file it refers to."""
    header = path.read_text().split("\n\n")[0].replace("\n#", "")
    if other := re.search(r"Hardware as for (\w+)", header):
        return promised(path.with_name(f"{other[1]}.toml"))
    if "Hardware: two CPU cores" in header:
        return [1, 2]
    match = re.search(r"Hardware: (\d+) to (\d+) GPUs .*?(that divide \d+|a power of two)", header)
    assert match is not None, f"{path.name} does not say for how many GPUs it is"
    rule = match[3].split()[-1]
    counts = range(int(match[1]), int(match[2]) + 1)
    if rule.isdigit():
        return [count for count in counts if int(rule) % count == 0]
    return [count for count in counts if count & (count - 1) == 0]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_number_of_ranks_that_a_file_promises_is_accepted(path: Path) -> None:
    run = load_config(path)
    counts = promised(path)
    assert len(counts) >= 2
    for count in counts:
        check_world_size(run, count)


@pytest.mark.parametrize(
    ("asked", "ranks", "taken"), [(16, 32, 32), (16, 4, 16), (30, 4, 32), (16, 1, 16), (2, 3, 3), (32, 60, 60)]
)
def test_calibration_sequences_are_a_multiple_of_the_ranks(asked: int, ranks: int, taken: int) -> None:
    assert calibration_sequences(load_config(None, [f"--saf.calibration_sequences={asked}"]), ranks) == taken


def test_tokens_of_a_step() -> None:
    words = ["--training.local_batch_size=2", "--training.seq_len=8"]
    assert load_config(None, words).tokens_per_step(3) == 2 * 3 * 8
    assert load_config(None, [*words, "--training.global_batch_size=12"]).tokens_per_step(3) == 12 * 8
