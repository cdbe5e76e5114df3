"""A study whose arms learn recall, each with the weights and the static heads of a run on text.

Covers study/answers.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from saf_titan.study.__main__ import main
from tests.e2e.runs import TINY, Run
from tests.warm.python import warm_python

pytestmark = pytest.mark.distributed

STUDY = """
config = "{config}"
columns = ["final", "accuracy", "heads"]
[launch]
device = "cpu"
[set]
data.kind = "mqar"
data.vocab_size = 64
data.pairs = 3
training.seq_len = 32
training.steps = 2
validator.lengths = [32, 64]
validator.pairs = [2, 3]
validator.examples = 6
[parent]
weights = "{parent}/checkpoint/step-4"
[[arm]]
name = "ordinary"
[[arm]]
name = "static"
weights = "{parent}"
"""


def test_arms_adapt_with_the_heads_that_their_weights_have(
    parent_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.toml").write_text(STUDY.format(config=TINY, parent=parent_run.folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # what the study starts its runs with
    monkeypatch.setattr(sys, "executable", warm_python())
    words = [str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    capsys.readouterr()
    assert (tmp_path / "out" / ".study").read_text() == "study\n"
    arms = json.loads((tmp_path / "out" / "results.json").read_text())["arms"]
    assert [len(arm["runs"][0]["static_heads"]) for arm in arms] == [0, 2]
    table = (tmp_path / "out" / "table.txt").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    lines = {line.split("  ")[0]: line.split()[1:] for line in table.partition("right answers in %")[2].splitlines()}
    for arm, static in zip(arms, (0, 2), strict=True):
        folder = tmp_path / "out" / f"{arm['name']}-1337"
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        # a new run: step 0, and as many steps as it was told
        assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 2]
        assert {row["static_heads"] for row in rows if row["kind"] == "train"} == {static}
        finals = [row for row in rows if row["kind"] == "accuracy" and row["phase"] == "final"]
        assert [(row["length"], row["pairs"]) for row in finals] == [(32, 2), (32, 3), (64, 2), (64, 3)]
        (run,) = arm["runs"]
        assert [answer["accuracy"] for answer in run["answers"]] == [row["accuracy"] for row in finals]
        assert run["accuracy"] == pytest.approx(25 * sum(row["accuracy"] for row in finals))
        assert lines[arm["name"]] == [f"{100 * row['accuracy']:.2f}" for row in finals]
    assert "64 x 3" in table
    assert "64 x 3" in page
    # a second start has nothing to do, and needs the parent no more
    assert main([*words, "--dry-run"]) == 0
    assert "of which 2 are done" in capsys.readouterr().out
