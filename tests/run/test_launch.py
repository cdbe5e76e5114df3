"""How a process of a run ends."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import pytest

from saf_titan.config import load_config
from saf_titan.run import checkpoints, launch
from saf_titan.run.launch import _write_report
from tests.warm.python import ROOT, warm_python

HOLD = "import sys; from pathlib import Path; from saf_titan.run.lock import lock; "
HOLD += "held = lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


def test_a_report_that_fails_is_no_failure_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        # a folder without metrics.jsonl has nothing to report
        _write_report(load_config(None, [f"--dump_folder={tmp_path}"]))
    assert "The training is complete" in caplog.text


def test_a_disk_that_fills_up_inside_torchs_writer_is_a_full_disk(tmp_path: Path) -> None:
    """torch's writer ignores that a write came short and then raises an error of its own, which is no OSError."""
    code = """
import resource, signal, sys, torch, torch.distributed.checkpoint as dcp
from saf_titan.run.launch import _explain
from saf_titan.config import load_config
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = load_config(None, [f"--dump_folder={sys.argv[1]}"])
for limit in (2_000, 10_000, 50_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        dcp.save({"w": torch.zeros(30_000)}, checkpoint_id=f"{sys.argv[1]}/step-{limit}", no_dist=True)
    except BaseException as error:
        print(_explain(error, run))
"""
    words = [warm_python(), "-W", "ignore", "-c", code, str(tmp_path)]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(f"no space left in {tmp_path}"), line
        assert "the last complete checkpoint is intact" in line


class _FailingTrainer:
    """Stands for a trainer whose run a user has to mend; it writes down the order of events."""

    def __init__(self, events: list[str], *, close_fails: bool) -> None:
        self._events, self._close_fails = events, close_fails

    def build(self) -> _FailingTrainer:
        return self

    def train(self) -> None:
        self._events.append("train")
        raise ValueError("the data end too early")

    def close(self) -> None:
        self._events.append("close")
        if self._close_fails:
            self._close_fails = False
            raise RuntimeError("a thread has died")


@pytest.mark.parametrize("close_fails", [False, True])
def test_the_trainer_is_closed_before_the_process_leaves(
    close_fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`leave` ends the process by os._exit, which skips `finally`: what is not closed before it stays open."""
    events: list[str] = []

    class Left(BaseException):
        pass

    def leave(status: int) -> None:
        events.append(f"leave {status}")
        raise Left

    trainer = _FailingTrainer(events, close_fails=close_fails)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "init_logger", lambda: None)
    monkeypatch.setattr(launch, "initial_checkpoint", lambda run: None)
    monkeypatch.setattr(launch, "trainer_config", lambda run, initial: trainer)
    monkeypatch.setattr(launch, "leave", leave)
    with pytest.raises(Left), caplog.at_level(logging.INFO):
        launch.launch(load_config(None, [f"--dump_folder={tmp_path / 'run'}", "--saf.rate=0.5"]))
    # a key that the run does not read is named before the run is built
    assert "note: saf.rate has no effect while saf.enable = false" in caplog.text
    assert events[:3] == ["train", "close", "leave 1"]
    assert "the data end too early" in (tmp_path / "run/error-rank0.txt").read_text()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_checkpoint_that_another_run_is_saving_is_not_renamed(
    rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second command on the folder of a run, at the moment between the two renames of the run's checkpoint."""
    saving = tmp_path / "checkpoint" / "step-8-being-saved"
    saving.mkdir(parents=True)
    (saving / ".metadata").write_bytes(b"index")
    words = [warm_python(), "-c", HOLD, str(tmp_path)]
    left: list[int] = []

    class Left(BaseException):
        pass

    def leave(status: int) -> None:
        left.append(status)
        raise Left

    for name, value in (("RANK", rank), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "init_logger", lambda: None)
    monkeypatch.setattr(launch, "leave", leave)
    monkeypatch.setattr(checkpoints, "_EXCHANGE_SECONDS", 0.0)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        with pytest.raises(Left):
            launch.launch(load_config(None, [f"--dump_folder={tmp_path}"]))
        run.stdin.close()
    assert left == [1]
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == [saving.name]
