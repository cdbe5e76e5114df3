"""A study of three arms and two seeds, stopped and killed once, shared by two processes, and compared with a
computation by hand.

Covers study/progress.py, study/results.py, study/output.py, study/cells.py, study/page.py.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from saf_titan.study.__main__ import main
from tests.e2e.conftest import corpus_overrides
from tests.e2e.runs import ROOT, TINY, environment, family
from tests.warm.python import warm_python

__all__ = ["corpus_overrides"]
pytestmark = pytest.mark.distributed

STUDY = f"""
config = "{TINY}"
title = "Patterns against pruning"
seeds = [1, 2]
branch_step = 4
columns = ["final", "change", "perplexity", "published", "jump", "updates", "heads"]
[launch]
device = "cpu"
[set]
training.steps = 40
checkpoint.interval = 5
validator.freq = 100
[[arm]]
name = "ordinary"
[[arm]]
name = "mean 25 %"
published = 0.5
saf.rate = 0.25
[[arm]]
name = "same heads pruned"
heads_of = "mean 25 %"
saf.content = "prune"
"""
ARMS = {"ordinary": "ordinary", "mean 25 %": "mean_25__", "same heads pruned": "same_heads_pruned"}


def start(words: list[str]) -> subprocess.Popen[str]:
    command = [warm_python(), "-m", "saf_titan.study", *words]
    return subprocess.Popen(
        command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(text: str, log: Path, process: subprocess.Popen[str]) -> None:
    """Return once a run has logged a text."""
    while not (log.exists() and text in log.read_text()):
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.02)


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def newest_checkpoint(folder: Path) -> int:
    return max((int(path.parent.name.split("-")[1]) for path in folder.glob("checkpoint/step-*/.metadata")), default=0)


class Finished(NamedTuple):
    """A study that has finished."""

    out: Path
    words: list[str]
    """Its command line."""
    said: list[str]
    """What each of the processes that finished it said."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Finished:
    """A study of eight runs that was stopped, killed, and finished by two processes at once."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(STUDY)
    words = [str(folder / "study.toml"), "--out", str(folder / "out"), *corpus_overrides]

    # a request to stop reaches the ranks of the run through torchrun, and they save their step
    ordinary = folder / "out" / "ordinary-1"
    with start([*words, "--nproc_per_node", "2"]) as process:
        wait_for("step 7/40", ordinary / "log.txt", process)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert re.search(r"Stopped; python -m saf_titan.study .* goes on from there\n$", said), said
    assert newest_checkpoint(ordinary) == max(row["step"] for row in rows(ordinary, "train")) >= 7

    # a kill of every process in the middle of a run
    killed = folder / "out" / "mean_25__-1"
    with start(words) as process:
        wait_for("step 9/40", killed / "log.txt", process)
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=120)
    assert 4 < newest_checkpoint(killed) < 40
    assert not rows(killed, "finish")

    # two processes at once share what is left
    with start(words) as first, start(words) as second:
        said = [process.communicate(timeout=500)[0] for process in (first, second)]
    for process, text in zip((first, second), said, strict=True):
        assert process.returncode == 0, text
    return Finished(folder / "out", words, said)


def test_two_processes_never_work_on_the_same_run(study: Finished) -> None:
    both = [re.findall(r"^\[\d/8\] (.+) (?:begins|goes on)", text, re.MULTILINE) for text in study.said]
    # each worked on some, and no run was taken twice
    assert all(both)
    labels = sorted([*both[0], *both[1]])
    assert labels == sorted(
        [
            "mean 25 %, seed 1",
            "same heads pruned, seed 1",
            "parent to step 4, seed 2",
            *(f"{arm}, seed 2" for arm in ARMS),
        ]
    )


def test_the_study_went_on_and_repeated_nothing(study: Finished) -> None:
    out, said = study.out, "".join(study.said)
    assert "mean 25 %, seed 1 goes on" in said
    assert "ordinary, seed 1" not in said
    for seed in (1, 2):
        parent = out / f"parent-4-{seed}"
        assert len(rows(parent, "start")) == 1
        assert not rows(parent, "resume")
        for name in ARMS.values():
            folder = out / f"{name}-{seed}"
            assert len(rows(folder, "finish")) == 1
            steps = {row["step"] for row in rows(folder, "train")}
            assert steps == set(range(5, 41))
            assert [path.name for path in (folder / "checkpoint").iterdir()] == ["step-40"]
    # it goes on from the parent at first, from its own checkpoint after the kill
    first, second = (row["step"] for row in rows(out / "mean_25__-1", "resume"))
    assert first == 4 < second


def test_the_table_by_hand(study: Finished) -> None:
    out, _, said = study
    finals = {
        arm: [rows(out / f"{name}-{seed}", "validation")[-1]["loss"] for seed in (1, 2)] for arm, name in ARMS.items()
    }
    table = (out / "table.txt").read_text()
    assert all(table in text for text in said)
    lines = {line.split("  ")[0]: line for line in table.splitlines()}
    summary = {arm["name"]: arm["summary"] for arm in json.loads((out / "results.json").read_text())["arms"]}
    for arm, losses in finals.items():
        changes = [loss - ordinary for loss, ordinary in zip(losses, finals["ordinary"], strict=True)]
        percents = [100 * (math.exp(change) - 1) for change in changes]
        mean, deviation = statistics.mean(percents), statistics.stdev(percents)
        # Student's t for one degree of freedom at 95 %
        half = 12.706204736 * deviation / math.sqrt(2)
        assert summary[arm]["perplexity"]["mean"] == pytest.approx(mean, abs=1e-12)
        assert summary[arm]["perplexity"]["half_width"] == pytest.approx(half, rel=1e-8)
        assert f"{statistics.mean(losses):.4f} +- {statistics.stdev(losses):.4f}" in lines[arm]
        if arm != "ordinary":
            interval = f"[{mean - half:+.2f}, {mean + half:+.2f}]"
            assert f"{mean:+.2f} +- {deviation:.2f} {interval}" in lines[arm]
    assert "+0.500" in lines["mean 25 %"]
    assert lines["mean 25 %"].split()[-2:] == ["36", "2"]

    with (out / "results.csv").open() as file:
        table_rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"]) for row in table_rows] == [(arm, seed) for arm in ARMS for seed in ("1", "2")]
    assert [float(row["final"]) for row in table_rows] == [loss for losses in finals.values() for loss in losses]


def test_pruned_heads_are_those_of_the_other_arm(study: Finished) -> None:
    out, _, _ = study
    arms = json.loads((out / "results.json").read_text())["arms"]
    mean, pruned = ([run["static_heads"] for run in arm["runs"]] for arm in arms[1:])
    assert mean == pruned
    assert [len(heads) for heads in mean] == [2, 2]


def test_the_page_shows_all_arms(study: Finished) -> None:
    out, _, _ = study
    page = (out / "report.html").read_text()
    assert all(arm in page for arm in ARMS)
    assert "<title>Patterns against pruning</title>" in page
    # the lines of a legend are pictures too, but not labelled ones
    assert page.count('<svg role="img" ') == 5
    for heading in ("Settings that differ", "Loss", "Static heads", "Overlap", "Time and memory"):
        assert f">{heading}</h" in page


def test_a_finished_study_has_nothing_to_do(study: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    out, words, _ = study
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("arm ")
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "runs       8, of which 8 are done" in said
    assert "to train   0 tokens" in said
    assert (out / "table.txt").read_text() in main_table(words, capsys)


def main_table(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*words, "--table"]) == 0
    return capsys.readouterr().out + "\n"


def test_an_arm_whose_settings_have_changed_is_refused(study: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    out, words, _ = study
    # the run must be looked at again: its final loss is lost
    metrics = out / "mean_25__-2" / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text("".join(line for line in whole.splitlines(keepends=True) if "validation" not in line))
    try:
        assert main([*words, "--optimizer.lr", "0.5"]) == 2
        message = capsys.readouterr().err
        assert "mean 25 %, seed 2 was begun with other settings: optimizer.lr was 0.01 and is 0.5" in message
        assert f"remove {out / 'mean_25__-2'}" in message
    finally:
        metrics.write_text(whole)


def test_ranks_below_one_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    assert main([str(tmp_path / "study.toml"), "--dry-run", "--nproc_per_node", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--nproc_per_node: '0' must be a whole number, at least 1" in line
