"""The studies of scripts/reproduce: their arms and tables, from metrics of runs that never ran."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from saf_titan.config import load_config

SCRIPTS = Path(__file__).parents[2] / "scripts" / "reproduce"


def load(name: str) -> Iterator[ModuleType]:
    """A script, imported as running it would: with its folder first on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield importlib.import_module(name)


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    yield from load("saf_study")


@pytest.fixture(scope="module")
def timed() -> Iterator[ModuleType]:
    yield from load("saf_matched_time")


def write_run(folder: Path, losses: dict[str, float], **finish: float) -> None:
    folder.mkdir()
    lines: list[dict[str, object]] = [{"kind": "train", "step": 1, "loss": 9.0}]
    lines += [{"kind": "validation", "step": 2, "loss": loss, "phase": phase} for phase, loss in losses.items()]
    lines += [{"kind": "finish", **finish}] if finish else []
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_penalties_are_relative_to_the_ordinary_run_of_the_same_seed(study: ModuleType, tmp_path: Path) -> None:
    for seed, ordinary, frozen in ((1, 3.0, 3.1), (2, 4.0, 4.3)):
        write_run(study.run_folder(tmp_path, study.ORDINARY, seed), {"final": ordinary})
        frozen_losses = {"before_freeze": 5.0, "after_freeze": 5.5, "final": frozen}
        write_run(study.run_folder(tmp_path, "mean 25 %", seed), frozen_losses)
    # one arm has one of two seeds, and one has not finished
    write_run(study.run_folder(tmp_path, "uniform 25 %", 1), frozen_losses | {"final": 2.9})
    write_run(study.run_folder(tmp_path, "mean 50 %", 1), {"before_freeze": 5.0})
    lines = study.table(tmp_path, study.read_arms(), [1, 2]).splitlines()
    assert lines[0] == "Ordinary attention: final loss 3.0000, 4.0000."
    assert lines[4] == "| mean 25 % | 2 | +0.5000 ± 0.0000 | +0.2000 ± 0.1414 | +22.75 ± 17.30 % |"
    assert lines[5] == "| uniform 25 % | 1 | +0.5000 | -0.1000 | -9.52 % |"
    assert len(lines) == 6


def test_arms_have_folders_and_settings_of_their_own(study: ModuleType, tmp_path: Path) -> None:
    arms = study.read_arms()
    folders = {study.run_folder(tmp_path, name, 1) for name in (study.ORDINARY, *(arm.name for arm in arms))}
    assert len(folders) == len(arms) + 1
    assert len({(arm.freeze, *sorted(arm.saf.items())) for arm in arms}) == len(arms)


def test_every_arm_is_a_configuration_of_the_trainer(study: ModuleType) -> None:
    length = study.base_length()
    for arm in study.read_arms():
        overrides = ["--saf.enable", "true", "--saf.step", str(length.freeze_step(arm.freeze))]
        for key, value in arm.saf.items():
            overrides += [f"--saf.{key}", str(value).lower() if isinstance(value, bool) else str(value)]
        run = load_config(study.CONFIG, overrides)
        assert 0 < length.parent_step(arm.freeze) <= run.freeze_step


def test_equal_time_compares_updates_and_losses_with_the_ordinary_run(timed: ModuleType, tmp_path: Path) -> None:
    parent, last = timed.steps_of_study()
    more = parent + (last - parent) * 5 // 4
    write_run(timed.run_folder(tmp_path, timed.ORDINARY, 1), {"final": 3.0}, step=last, seconds=100.0)
    write_run(timed.run_folder(tmp_path, "by variance, 50 %", 1), {"final": 2.9}, step=more, seconds=98.0)
    lines = timed.table(tmp_path, [1]).splitlines()
    assert lines[0] == "Ordinary attention: final loss 3.0000 after 100 s."
    assert lines[4] == "| by variance, 50 % | 1 | 0.980 | 1.250 | -0.1000 | -9.52 % |"
    assert len(lines) == 5
