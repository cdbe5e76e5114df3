"""The table of scripts/reproduce/saf_study.py, from metrics of runs that never ran."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce" / "saf_study.py"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("saf_study", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder: Path, losses: dict[str, float]) -> None:
    folder.mkdir()
    lines = [{"kind": "train", "step": 1, "loss": 9.0}]
    lines += [{"kind": "validation", "step": 2, "loss": loss, "phase": phase} for phase, loss in losses.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_penalties_are_relative_to_the_ordinary_run_of_the_same_seed(study: ModuleType, tmp_path: Path) -> None:
    for seed, ordinary, frozen in ((1, 3.0, 3.1), (2, 4.0, 4.3)):
        write_run(study.run_folder(tmp_path, study.ORDINARY, seed), {"final": ordinary})
        frozen_losses = {"before_freeze": 5.0, "after_freeze": 5.5, "final": frozen}
        write_run(study.run_folder(tmp_path, "mean 25 %", seed), frozen_losses)
    # one arm has one of two seeds, and one has not finished
    write_run(study.run_folder(tmp_path, "uniform 25 %", 1), frozen_losses | {"final": 2.9})
    write_run(study.run_folder(tmp_path, "mean 50 %", 1), {"before_freeze": 5.0})
    lines = study.table(tmp_path, [1, 2]).splitlines()
    assert lines[0] == "Ordinary attention: final loss 3.0000, 4.0000."
    assert lines[4] == "| mean 25 % | 2 | +0.5000 ± 0.0000 | +0.2000 ± 0.1414 | +22.14% |"
    assert lines[5] == "| uniform 25 % | 1 | +0.5000 | -0.1000 | -9.52% |"
    assert len(lines) == 6


def test_arms_have_folders_of_their_own(study: ModuleType, tmp_path: Path) -> None:
    folders = {study.run_folder(tmp_path, arm, 1) for arm in (study.ORDINARY, *study.ARMS)}
    assert len(folders) == len(study.ARMS) + 1
