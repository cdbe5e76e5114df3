"""Several runs on one page, which study and command line share.

Covers report/compare_figures.py, report/drawing.py, report/group.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from saf_titan.analysis.__main__ import main
from saf_titan.report.compare import comparison, overlap, static_slots, write_comparison
from saf_titan.report.compare_figures import loss_figure
from saf_titan.report.group import Group
from saf_titan.report.run_log import joined, read_run
from tests.report.runs import (
    finish_row,
    plain_rows,
    session_row,
    train_row,
    validation_row,
    write_frozen_run,
    write_run,
)
from tests.report.test_write import pictures, text_of


def timed(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The rows with the clock and the memory that the trainer writes."""
    return [
        {**row, "seconds": 0.5 * int(str(row["step"])), "peak_memory_gib": 1.5} if row["kind"] == "train" else row
        for row in rows
    ]


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    rows = [*timed(plain_rows()), finish_row(120), validation_row(120, "final", 3.2)]
    return write_run(tmp_path / "ordinary", rows), write_frozen_run(tmp_path / "frozen")


def test_the_dot_of_a_run_is_at_its_own_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another run of the group is too short for a line."""
    short, long = (
        [*timed(plain_rows(steps)), finish_row(steps), validation_row(steps, "final", loss)]
        for steps, loss in ((5, 7.5), (120, 3.25))
    )
    logs = tuple(read_run(write_run(tmp_path / name, rows)) for name, rows in (("short", short), ("long", long)))
    drawn: list[Figure] = []
    monkeypatch.setattr("saf_titan.report.compare_figures.to_svg", lambda figure: drawn.append(figure) or "svg")
    assert loss_figure([Group(name="arm", logs=logs)], "tokens") == "svg"
    dots = [line.get_xydata().tolist() for line in drawn[0].axes[0].lines if line.get_marker() == "o"]
    assert dots == [[[1024 * 120, 3.25]]]


def test_runs_side_by_side(runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["report", *map(str, runs), "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    text = text_of(page)
    for fact in (
        "ordinary Finished: step 120 of 120. frozen Finished: step 120 of 120.",
        "saf.enable False True",
        "saf.rate 0.25 0.5",
        "Training loss minus that of ordinary at the same step",
        "ordinary 3.2000 (perplexity 24.53)",
        "frozen 3.2500 (perplexity 25.79)",
        "frozen 4 heads",
        # calibrate, fit and the rest, steps/s before and after, speed
        "frozen 1.5 s 0.375 s 2 2.5 1.25x",
        "ordinary 2 1.50 GiB 60 s",
    ):
        assert fact in text
    # loss over tokens, over seconds (of the one run that has a clock), difference, static heads
    assert len(pictures(page)) == 4


def test_seeds_of_a_group_agree_or_not(runs: tuple[Path, Path], tmp_path: Path) -> None:
    frozen = read_run(runs[1])
    groups = [Group(name="ordinary", logs=(read_run(runs[0]),) * 2), Group(name="frozen", logs=(frozen,) * 2)]
    page = tmp_path / "page.html"
    page.write_text(comparison("Two seeds", groups))
    text = text_of(page)
    assert "frozen 1.00" in text
    assert "4 heads in each of 2 runs" in text
    assert "A line is the mean over the seeds." in text


def test_what_is_damaged_in_a_run_is_said(runs: tuple[Path, Path], tmp_path: Path) -> None:
    plain, frozen = runs
    (frozen / "saf" / "step-000060" / "plan.safetensors").unlink()
    (frozen / "config.toml").unlink()
    with (frozen / "metrics.jsonl").open("a") as log:
        log.write('{"kind": "tra')
    page = tmp_path / "page.html"
    write_comparison([plain, frozen], page)
    text = text_of(page)
    assert "Differences are to the first run, ordinary." in text
    assert "frozen: config.toml is missing or damaged" in text
    assert "frozen: metrics.jsonl: 1 line is damaged" in text
    assert "frozen: The plan cannot be read" in text
    assert "Settings that differ Not known: they need config.toml of at least two runs." in text


def test_overlap_is_the_jaccard_index() -> None:
    assert overlap({(0, 1), (0, 2), (1, 1)}, {(0, 2), (1, 1), (1, 3)}) == 0.5
    assert overlap(set(), set()) == 1


def test_static_heads_of_a_run(runs: tuple[Path, Path]) -> None:
    assert static_slots(read_run(runs[0])) is None
    found = static_slots(read_run(runs[1]))
    assert found is not None
    heads, shape = found
    assert (len(heads), shape) == (4, (4, 8))


def test_a_folder_that_holds_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "no such folder; give the dump_folder of a training run" in capsys.readouterr().err


def test_a_run_and_the_one_it_went_on_from(tmp_path: Path) -> None:
    first = [session_row("start", 0), *timed([train_row(5), train_row(10)]), finish_row(10, 6.0)]
    second = [session_row("resume", 10), *timed([train_row(15)]), finish_row(20, 4.0)]
    parent = read_run(write_run(tmp_path / "parent", first))
    child = read_run(write_run(tmp_path / "child", second))
    whole = joined(parent, child)
    assert [row.step for row in whole.train] == [5, 10, 15]
    assert [row.seconds for row in whole.train] == [2.5, 5.0, 6.0 + 7.5]
    assert whole.finish is not None
    assert whole.finish.seconds == 10.0
    assert whole.folder == child.folder
    assert joined(parent, replace(child, finish=None)).finish is None
