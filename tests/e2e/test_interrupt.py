"""Runs that are stopped, killed, or meet a broken disk lose nothing that was checkpointed.

Covers run/leave.py.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.runs import ROOT, environment, execute, interrupt, module, torchrun, train
from tests.warm.python import warm_python

pytestmark = pytest.mark.distributed

# long enough that every signal arrives in time
LONG = ("--training.steps", "4000", "--lr_scheduler.total_steps", "4000", "--validator.freq", "10000")
TRACEBACK = "Traceback (most recent call last)"


def newest_step(folder: Path) -> int:
    return max(int(path.parent.name.removeprefix("step-")) for path in folder.glob("checkpoint/step-*/.metadata"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_stop_signal_saves_the_step_and_the_same_command_goes_on(
    tmp_path: Path, corpus_overrides: tuple[str, ...], number: signal.Signals
) -> None:
    options = (*corpus_overrides, *LONG, "--checkpoint.interval", "100000")
    # The launcher alone gets the signal. One that is killed cannot pass anything on, and its ranks notice that their
    # parent is gone, so they must be its own children, and not those of the server that starts other tests' processes.
    python = sys.executable if number == signal.SIGKILL else None
    stopped = interrupt(tmp_path, *options, ranks=2, at="step 7/", by=number, python=python)
    assert "goes on from there" in stopped.output
    # the launcher's own, which reports the signal it got
    assert stopped.output.count(TRACEBACK) <= 1
    last = max(stopped.losses())
    assert newest_step(tmp_path) == last

    train(tmp_path, *options, "--training.steps", str(last + 2))
    resumed = stopped.losses()
    assert list(resumed) == list(range(1, last + 3))
    assert resumed[last + 1] < resumed[1]


def test_a_single_process_stops_with_status_zero(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    alone = [warm_python(), *module(tmp_path, *corpus_overrides, *LONG)]
    with subprocess.Popen(
        alone, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "step 3/" in line:
                process.send_signal(signal.SIGINT)
                break
        output = process.stdout.read()
        assert process.wait() == 0, output
    assert "goes on from there" in output
    assert TRACEBACK not in output


def test_kill_9_loses_only_steps_after_the_last_checkpoint(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    options = (*corpus_overrides, *LONG)
    killed = interrupt(tmp_path, *options, ranks=2, at="step 9/", by=signal.SIGKILL, whole_group=True)
    before, newest = killed.losses(), newest_step(tmp_path)
    assert newest >= 8
    # the next checkpoint as a kill in the middle of writing it leaves it: data, and no metadata
    unfinished = tmp_path / "checkpoint" / f"step-{newest + 2}"
    unfinished.mkdir(exist_ok=True)
    (unfinished / "__0_0.distcp").write_bytes(b"half a checkpoint")

    resumed = train(tmp_path, *options, "--training.steps", str(newest + 4))
    after = {row["step"]: row["loss"] for row in resumed.kind("train")[len(before) :]}
    assert list(after) == list(range(newest + 1, newest + 5))
    for step in set(before) & set(after):
        assert before[step] == after[step], step
    assert newest_step(tmp_path) == newest + 4


def test_a_full_disk_is_one_clear_error_and_the_last_checkpoint_survives(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    train(tmp_path, *corpus_overrides, "--training.steps", "2", "--saf.enable", "false", ranks=1)

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    full = execute([*torchrun(1), *module(tmp_path, *corpus_overrides)], preexec_fn=limit_file_size)
    assert full.returncode != 0
    assert "no space left" in full.stdout, full.stdout[-3000:]
    assert "the last complete checkpoint is intact" in full.stdout
    assert newest_step(tmp_path) == 2
    assert max(train(tmp_path, *corpus_overrides, ranks=1).losses()) == 8


def test_a_run_that_diverges_saves_nothing_and_names_the_sound_checkpoint(
    tmp_path: Path, corpus_overrides: tuple[str, ...]
) -> None:
    options = (*corpus_overrides, "--saf.enable", "false", "--metrics.log_freq", "100")
    train(tmp_path, *options, "--training.steps", "2", ranks=1)
    # at this rate the weights overflow; only the checkpoint of step 4 looks, because no step before it is logged
    broken = train(tmp_path, *options, "--training.steps", "8", "--optimizer.lr", "1e38", status=1)
    assert "the run has diverged" in broken.output, broken.output[-3000:]
    assert f"the newest sound checkpoint is {tmp_path / 'checkpoint' / 'step-2'}" in broken.output
    assert newest_step(tmp_path) == 2
    assert max(train(tmp_path, *options, "--training.steps", "8", ranks=1).losses()) == 8


def test_a_damaged_shard_names_the_file(tmp_path: Path, corpus_overrides: tuple[str, ...]) -> None:
    source = Path(corpus_overrides[1])
    broken = tmp_path / "corpus"
    broken.mkdir()
    for file in source.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    shard = broken / "train_000000.bin"
    shard.write_bytes(shard.read_bytes()[:-100])
    failed = train(tmp_path / "run", "--data.path", str(broken), ranks=1, status=1)
    assert str(shard) in failed.output
    # the launcher's own at most: that a rank failed, and what torchtitan recorded of it
    assert failed.output.count(TRACEBACK) <= 2
