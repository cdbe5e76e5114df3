"""Several processes share the runs of a study."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from saf_titan.config import to_toml
from saf_titan.study.launch import Launcher, Stopped
from saf_titan.study.load import load_study
from saf_titan.study.plan import StudyPlan
from saf_titan.study.runs import StudyRun
from saf_titan.study.schema import Launch
from saf_titan.study.work import STUDY_LOCK, work
from tests.e2e.runs import TINY

HOLD = "import sys; from pathlib import Path; from saf_titan.run.lock import lock; "
HOLD += "held = lock(Path(sys.argv[1]), {!r}); "
HOLD += "print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def plan(tmp_path: Path) -> StudyPlan:
    path = tmp_path / "study.toml"
    path.write_text(f'config = "{TINY}"\nbranch_fraction = 0.0\n[[arm]]\nname = "a"\n[[arm]]\nname = "b"\n')
    return StudyPlan(load_study(path), tmp_path / "out")


class Recorder(Launcher):
    """Finishes a run at once instead of training it."""

    def __init__(self, plan: StudyPlan, *, stop_after: int) -> None:
        super().__init__(Launch())
        self.names: list[str] = []
        self._left = stop_after

    def run(self, config: object) -> None:
        folder = Path(config.dump_folder)
        self.names.append(folder.name)
        lines = [{"kind": "start", "step": 0}, {"kind": "finish", "step": 8, "seconds": 1.0}]
        lines.append({"kind": "validation", "step": 8, "loss": 4.0, "phase": "final"})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "config.toml").write_text(to_toml(config))
        self._left -= 1
        self.stop_requested = self._left == 0


@pytest.mark.parametrize("name", [STUDY_LOCK, ".lock"], ids=["by a study", "by a run whose study was killed"])
def test_a_run_in_work_is_left_to_its_process(plan: StudyPlan, name: str) -> None:
    taken: StudyRun = plan.of("a", 1337)
    taken.folder.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(name), str(taken.folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        said: list[str] = []
        launcher = Recorder(plan, stop_after=1)
        # the other run is done; then there is nothing but waiting, which a stop ends
        with pytest.raises(Stopped):
            work(plan, launcher, said.append)
        assert launcher.names == ["b-1337"]
        assert said[-1] == "waiting for 1 run of other processes"
        holder.stdin.close()
    launcher = Recorder(plan, stop_after=9)
    work(plan, launcher, said.append)
    assert launcher.names == ["a-1337"]
