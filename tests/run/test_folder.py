"""The output folder: what an earlier run has left, and metrics that do not mix."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config import RunConfig, load_config, to_toml
from saf_titan.run.folder import CONFIG_FILE, open_folder
from saf_titan.run.metrics import set_aside_metrics


def run(folder: Path, *words: str) -> RunConfig:
    return load_config("debug_cpu", [f"--dump_folder={folder}", *words])


def leave_run(folder: Path, step: int | None, *words: str) -> None:
    """What a run that reached a step has left; None: it was killed before its first checkpoint."""
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(to_toml(run(folder, *words)))
    if step is not None:
        checkpoint = folder / "checkpoint" / f"step-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / ".metadata").write_bytes(b"index")


def test_a_new_folder_has_nothing_to_say(tmp_path: Path) -> None:
    opening = open_folder(run(tmp_path / "run"))
    assert (opening.nothing_to_do, opening.lines) == (None, ())


def test_a_run_goes_on_and_says_what_changed(tmp_path: Path) -> None:
    leave_run(tmp_path / "run", 150)
    opening = open_folder(run(tmp_path / "run", "--saf.rate=0.5", "--training.steps=600"))
    assert opening.nothing_to_do is None
    assert opening.lines == (
        "The run goes on with another configuration: training.steps was 300 and is 600; saf.rate was 0.25 and is 0.5",
    )


def test_another_run_is_refused_and_nothing_is_rewritten(tmp_path: Path) -> None:
    leave_run(tmp_path / "run", 150)
    before = (tmp_path / "run" / CONFIG_FILE).read_bytes()
    with pytest.raises(ValueError, match=r"debug.seed was .* and is 8"):
        open_folder(run(tmp_path / "run", "--debug.seed=8"))
    assert (tmp_path / "run" / CONFIG_FILE).read_bytes() == before


def test_a_finished_run_has_nothing_to_do(tmp_path: Path) -> None:
    leave_run(tmp_path / "run", 300)
    opening = open_folder(run(tmp_path / "run", "--saf.rate=0.5"))
    assert opening.nothing_to_do is not None
    assert opening.nothing_to_do.startswith("Nothing to do: the run is at step 300 of 300")


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    leave_run(tmp_path / "run", None)
    (tmp_path / "run" / "checkpoint" / "step-20").mkdir(parents=True)
    opening = open_folder(run(tmp_path / "run", "--debug.seed=8"))
    assert opening.nothing_to_do is None
    assert [line.partition(" ")[2] for line in opening.lines] == [
        "is incomplete (a save was cut short) and is not used; it is removed once newer checkpoints replace it",
        "holds an earlier run without a checkpoint, so this run starts from the beginning",
    ]


def test_a_configuration_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    leave_run(tmp_path / "run", 150)
    (tmp_path / "run" / CONFIG_FILE).write_text("[training\n")
    (line,) = open_folder(run(tmp_path / "run")).lines
    assert "cannot be compared with this configuration" in line


def test_metrics_of_an_earlier_run_are_kept_beside(tmp_path: Path) -> None:
    set_aside_metrics(tmp_path)
    path = tmp_path / "metrics.jsonl"
    for text in ("first\n", "second\n"):
        path.write_text(text)
        set_aside_metrics(tmp_path)
    assert not path.exists()
    assert [(tmp_path / f"metrics.{n}.jsonl").read_text() for n in (1, 2)] == ["first\n", "second\n"]
    path.write_text("")
    set_aside_metrics(tmp_path)
    assert path.exists()


def test_a_step_to_keep_that_is_gone_is_said(tmp_path: Path) -> None:
    leave_run(tmp_path / "run", 150)
    (line,) = open_folder(run(tmp_path / "run", "--checkpoint.keep_steps=[75, 150, 225]")).lines[:1]
    assert line == "checkpoint.keep_steps: the run is past step 75, and the checkpoint of that step no longer exists"
