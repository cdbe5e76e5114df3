"""Generated sequences that cannot be, reported before the start.

Covers config/generated_data.py, data/generate.py.
"""

from __future__ import annotations

import pytest

from saf_titan.config import ConfigError, load_config
from saf_titan.data.checks import inspect_data

MQAR = ("--data.kind=mqar", "--training.seq_len=64")
CLASSES = ("--data.kind=class_tokens", "--training.seq_len=17")
FILES = ("--data.from_files=true",)


def faults(*words: str) -> list[str]:
    try:
        load_config(None, words)
    except ConfigError as error:
        return sorted(problem.key for problem in error.problems)
    return []


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ((*MQAR, "--validator.pairs=[4, 21]", "--validator.lengths=[64, 128]"), []),
        ((*MQAR, "--data.pairs=22"), ["data.pairs", "validator.pairs"]),
        ((*MQAR, "--validator.pairs=[4, 22]"), ["validator.pairs"]),
        ((*MQAR, "--validator.lengths=[12]"), ["validator.pairs"]),
        ((*MQAR, "--data.seed=800073"), ["data.seed"]),
        ((*MQAR, "--data.classes=3"), ["data.classes"]),
        ((*MQAR, "--data.verify=true"), ["data.verify"]),
        ((*MQAR, "--validator.lengths=[128]", "--saf.enable=true"), ["validator.lengths"]),
        ((*MQAR, "--data.zoology=true", "--data.no_fillers=true", "--data.zoology_rows=4"), []),
        ((*MQAR, "--data.zoology_rows=4"), ["data.zoology_rows"]),
        ((*MQAR, "--data.zoology=true", "--data.seed=1336"), ["data.seed"]),
        ((*MQAR, "--data.zoology=true", "--data.pairs=17"), ["data.pairs", "validator.pairs"]),
        ((*CLASSES, "--data.gamma=0.5", "--data.zoology=true"), ["data.zoology"]),
        ((*MQAR, *FILES, "--data.verify=true", "--saf.enable=true", "--saf.calibration_split=train"), []),
        ((*MQAR, *FILES, "--data.zoology=true", "--data.power_a=1.0"), ["data.power_a", "data.zoology"]),
        (
            (*MQAR, *FILES, "--validator.pairs=[4]", "--validator.lengths=[64]"),
            ["validator.lengths", "validator.pairs"],
        ),
        ((*CLASSES, *FILES), []),
        ((*CLASSES, *FILES, "--data.counts=[2, 14]"), ["data.counts"]),
        (
            (*CLASSES, "--data.gamma=0.5", "--saf.enable=true", "--saf.calibration_split=train"),
            ["saf.calibration_split"],
        ),
        (FILES, ["data.from_files"]),
        (("--data.pairs=3",), ["data.pairs"]),
        (("--validator.examples=3", "--validator.pairs=[3]"), ["validator.examples", "validator.pairs"]),
        ((*CLASSES, "--data.counts=[2, 14]"), []),
        ((*CLASSES, "--data.gamma=0.5", "--validator.lengths=[9, 17]"), []),
        (CLASSES, ["data.gamma"]),
        ((*CLASSES, "--data.counts=[2, 13]"), ["data.counts"]),
        ((*CLASSES, "--data.counts=[2, 14]", "--data.vocab_size=30"), ["data.vocab_size"]),
        ((*CLASSES, "--data.gamma=0.5", "--data.deterministic=true"), ["data.deterministic"]),
    ],
)
def test_faults(words: tuple[str, ...], keys: list[str]) -> None:
    assert faults(*words) == keys


def test_the_look_at_the_data_names_sizes_and_what_does_not_fit() -> None:
    run = load_config(
        None, [*MQAR, "--validator.enable=true", "--validator.lengths=[32, 64]", "--validator.examples=9"]
    )
    lines, problems = inspect_data(run, 1)
    assert not problems
    assert "8 pairs in 64 tokens; vocabulary 8,192" in lines[0]
    assert lines[1] == "validation on 9 other sequences of each kind: 32 tokens, 8 pairs; 64 tokens, 8 pairs"
    _, (problem,) = inspect_data(load_config(None, [*MQAR, "--model.vocab_size=100"]), 1)
    assert problem.key == "model.vocab_size"
    # three keys for eight pairs: the generator says so itself
    _, (problem,) = inspect_data(load_config(None, [*MQAR, "--data.vocab_size=8"]), 1)
    assert problem.key == "data.kind"
