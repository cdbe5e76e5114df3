"""Which keys a run keeps for its life, and when there is nothing left to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config import RunConfig, load_config
from saf_titan.run.changes import FIXED, MAY_CHANGE, changes, nothing_to_do, require_same_run, values


def run(*words: str) -> RunConfig:
    return load_config("debug_cpu", words)


def test_every_key_is_decided_and_every_entry_is_a_key() -> None:
    keys = {key for key, _ in values(RunConfig())}
    sections = {key.partition(".")[0] for key in keys}
    for key in keys:
        section = key.partition(".")[0]
        # a key's own entry wins over that of its section, so there may be one of each
        assert (key in FIXED) + (key in MAY_CHANGE) <= 1, key
        assert {key, section} & (FIXED.keys() | MAY_CHANGE), f"{key} is neither fixed nor free to change on a resume"
    assert (FIXED.keys() | MAY_CHANGE) <= keys | sections


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--debug.seed=7", "debug.seed was "),
        ("--data.seed=7", "data.seed was 1337 and is 7 (the windows would come in another order)"),
        ("--training.seq_len=128", "training.seq_len was 256 and is 128"),
        ("--model.num_layers=2", "model.num_layers was 4 and is 2 (the saved weights are of the old model)"),
        (
            "--optimizer.name=SGD",
            'optimizer.name was "AdamW" and is "SGD" (the saved moments are of the old optimizer)',
        ),
    ],
)
def test_what_makes_another_run_is_refused_with_the_remedy(word: str, said: str) -> None:
    found = changes(run(), run(word))
    with pytest.raises(ValueError, match=r"holds another run: .* Start a new one with another --dump_folder") as error:
        require_same_run(found, Path("outputs/debug"))
    assert said in str(error.value)


@pytest.mark.parametrize(
    "word",
    [
        "--training.steps=600",
        "--saf.rate=0.5",
        "--optimizer.lr=1e-4",
        "--training.global_batch_size=16",
        "--metrics.log_freq=3",
        "--model.attention_backend=naive",
        "--data.path=elsewhere",
        "--saf.enable=false",
    ],
)
def test_what_may_change_is_listed_and_goes_on(word: str) -> None:
    found = changes(run(), run(word))
    require_same_run(found, Path("outputs/debug"))
    assert [change.key for change in found] == [word[2:].partition("=")[0]]


def test_a_default_written_out_is_no_change() -> None:
    # the debug flavor has four layers
    assert changes(run(), run("--model.num_layers=4", "--dump_folder=elsewhere")) == []


def test_a_finished_run_changes_only_when_it_is_prolonged() -> None:
    before = run()
    assert nothing_to_do(before, [], 299, budget_is_spent=False) is None
    text = nothing_to_do(before, [], 300, budget_is_spent=False)
    assert text == "Nothing to do: the run is at step 300 of 300; raise training.steps to go on."
    more = run("--saf.rate=0.5")
    text = nothing_to_do(more, changes(before, more), 300, budget_is_spent=False)
    assert text is not None
    assert text.endswith("Nothing was changed, although saf.rate was 0.25 and is 0.5.")
    longer = run("--saf.rate=0.5", "--training.steps=600")
    assert nothing_to_do(longer, changes(before, longer), 300, budget_is_spent=False) is None


def test_a_run_of_fixed_time_ends_with_its_time() -> None:
    timed = run("--saf.matched_seconds=60")
    assert nothing_to_do(timed, [], 999, budget_is_spent=False) is None
    assert "raise saf.matched_seconds" in (nothing_to_do(timed, [], 20, budget_is_spent=True) or "")
