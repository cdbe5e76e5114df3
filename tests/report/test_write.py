"""The page of every kind of run: complete, self-contained, and honest about what is missing.

Covers `write`, `sections`, `markup` and the command line.

Covers report/figures.py, report/freeze_sections.py, report/markup.py, report/sections.py.
"""

import json
import re
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from saf_titan.analysis.__main__ import main as analysis_main
from saf_titan.report.write import write_report, write_whole
from saf_titan.saf.plan.plan import StaticPlan
from tests.report.runs import (
    calibration,
    finish_row,
    plain_rows,
    session_row,
    train_row,
    undone_row,
    validation_row,
    write_frozen_run,
    write_run,
)


def text_of(path: Path) -> str:
    """What a reader sees, pictures and style left out, as one line."""

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.words: list[str] = []
            self.silent = 0

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.silent += tag in ("svg", "style", "script")

        def handle_endtag(self, tag: str) -> None:
            self.silent -= tag in ("svg", "style", "script")

        def handle_data(self, data: str) -> None:
            if not self.silent:
                self.words.append(data)

    reader = Reader()
    reader.feed(path.read_text())
    return " ".join(" ".join(reader.words).split())


def pictures(path: Path) -> list[ElementTree.Element]:
    """All inline pictures but the keys of legends; each must be well-formed by itself."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", path.read_text(), re.DOTALL)]
    return [svg for svg in found if svg.get("aria-hidden") is None]


@pytest.fixture(scope="module")
def frozen_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_frozen_run(tmp_path_factory.mktemp("runs") / "debug_cpu"))


def test_the_facts_of_a_frozen_run(frozen_report: Path) -> None:
    text = text_of(frozen_report)
    for fact in (
        "Finished: step 120 of 120.",
        "gpt debug: 4 layers x 8 heads",
        "50% of all heads after step 60, chosen by variance, pattern mean",
        "4 heads became static, chosen by variance on 4 held-out sequences of 40 tokens",
        "3.7500 validation loss just before (perplexity 42.52)",
        "3.8125 validation loss just after (perplexity 45.26, +0.0625)",
        "3.2500 validation loss, step 120 (perplexity 25.79)",
        "0.5 s step time before, median (middle half of the intervals: 0.5 to 0.5 s)",
        "0.4 s step time after, median (middle half of the intervals: 0.4 to 0.4 s)",
        "1.25x speed of a step after / before (spread 1.25 to 1.25)",
        "1.88 s time that the freeze took (calibrate 1.5 s, fit 0.25 s, install 0.125 s)",
    ):
        assert fact in text


def test_the_plan_lists_every_head(frozen_report: Path) -> None:
    plan = StaticPlan.load(frozen_report.parent / "saf" / "step-000060" / "plan.safetensors")
    text = text_of(frozen_report)
    for head in plan.heads:
        assert f"{head.rank} {head.layer} {head.head} {head.score:.3e} {head.fit_kl:.4f}" in text


def test_skipped_heads_are_listed_with_reasons_and_marked(tmp_path: Path) -> None:
    # a limit that only some heads keep
    folder = write_frozen_run(tmp_path / "run", rate=1.0, max_fit_kl=0.001)
    plan = StaticPlan.load(folder / "saf" / "step-000060" / "plan.safetensors")
    assert plan.heads
    assert plan.skipped
    path = write_report(folder)
    text = text_of(path)
    for head in plan.skipped:
        assert f"{head.layer} {head.head} {head.score:.3e} {head.fit_kl:.4f} {head.reason}" in text
    marks = re.findall(r'data-head="(L\d+H\d+)" data-mark=", (made static|skipped)"', path.read_text())
    assert sorted(marks) == sorted(
        [(head.name, "made static") for head in plan.heads] + [(head.name, "skipped") for head in plan.skipped]
    )


def test_figures_take_the_colour_of_the_page(frozen_report: Path) -> None:
    # two of the loss, and two maps for each of the four static heads
    assert len(pictures(frozen_report)) == 2 + 2 * 4
    source = frozen_report.read_text()
    assert source.count("currentColor") > 10
    assert "#010203" not in source
    assert source.count('role="img" aria-label="') == 2 + 2 * 4


def test_the_page_loads_nothing(frozen_report: Path) -> None:
    source = frozen_report.read_text()
    assert not re.findall(r"<script[^>]*\bsrc\b|\bfetch\(|XMLHttpRequest|\bimport\(", source)
    assert "<link" not in source
    assert "@import" not in source
    targets = re.findall(r'(?:href|src)="([^"]*)"', source) + re.findall(r"url\(([^)]*)\)", source)
    assert targets
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in targets)


def test_equal_runs_give_equal_pages(frozen_report: Path) -> None:
    first = frozen_report.read_bytes()
    assert write_report(frozen_report.parent).read_bytes() == first


@pytest.mark.parametrize("heads", [0, 1, 3, 99])
def test_as_many_patterns_as_asked_for(tmp_path: Path, heads: int) -> None:
    path = write_report(write_frozen_run(tmp_path / "run"), heads=heads)
    images = sum(len(list(picture.iter("{http://www.w3.org/2000/svg}image"))) for picture in pictures(path))
    # two maps a head
    assert images == 2 * min(heads, 4)
    assert ("Patterns" in text_of(path)) == (heads > 0)


def test_a_run_without_freezing(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run", plain_rows()))
    text = text_of(path)
    assert "none: this run keeps all heads live" in text
    assert "Freeze after" not in text
    assert len(pictures(path)) == 1


def test_an_unfinished_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", plain_rows(55), "--saf.enable=true")
    text = text_of(write_report(folder))
    assert "Unfinished: step 55 of 120." in text
    assert "25% of all heads after step 60 (not reached yet)" in text


def test_a_run_killed_while_it_wrote_a_line(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    log = folder / "metrics.jsonl"
    log.write_text(log.read_text()[:-20])
    text = text_of(write_report(folder))
    assert "3.8125 validation loss just after" in text
    assert "3.2500" not in text


@pytest.mark.parametrize(
    "rows", [[], [session_row("start", 0)], [session_row("start", 0), validation_row(1, "scheduled")]]
)
def test_a_run_that_has_not_logged_a_step(tmp_path: Path, rows: list) -> None:
    assert "No step has been logged yet." in text_of(write_report(write_run(tmp_path / "run", rows)))


def test_one_logged_step(tmp_path: Path) -> None:
    assert len(pictures(write_report(write_run(tmp_path / "run", [session_row("start", 0), train_row(1)])))) == 1


def test_losses_that_are_no_numbers(tmp_path: Path) -> None:
    rows = [session_row("start", 0), *(train_row(step, loss=float("nan") if step > 3 else 2.0) for step in range(1, 9))]
    text = text_of(write_report(write_run(tmp_path / "run", rows)))
    assert "nan training loss, step 8 (perplexity nan)" in text


def test_missing_files_are_said_to_be_missing(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    (folder / "config.toml").unlink()
    (folder / "saf" / "step-000060" / "stats.safetensors").unlink()
    path = write_report(folder)
    text = text_of(path)
    assert "config.toml is missing or damaged" in text
    assert "The statistics cannot be read" in text
    # the plan is still told
    assert "4 heads became static" in text
    assert len(pictures(path)) == 2


def test_a_run_that_diverged_says_so(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as log:
        for row in (train_row(62, loss=None), train_row(72, loss=None), validation_row(121, "final") | {"loss": None}):
            log.write(json.dumps(row) + "\n")
    text = text_of(write_report(folder))
    assert "The run diverged: 3 logged losses are not numbers, the first one at step 62." in text


def test_figures_have_their_numbers_as_tables(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "circuits", "step": 20, "qk_update": [1e-2, 3e-2], "ov_update": [1e-3, None]}))
    text = text_of(write_report(folder))
    assert "step when validation loss perplexity 1 scheduled" in text
    assert "60 before freeze 3.7500 42.5 60 after freeze 3.8125 45.3 120 final 3.2500 25.8" in text
    assert "step QK OV 20 0.02 0.001" in text


def test_what_became_of_an_intended_freeze(tmp_path: Path) -> None:
    enabled = ("--saf.enable=true",)
    for name, rows, words in (
        ("before", plain_rows(55), "(not reached yet)"),
        ("undone", [*plain_rows(), undone_row(60, 3)], "(tried and undone)"),
        ("never", plain_rows(), "(has not happened)"),
        ("beyond", plain_rows(90), "(has not happened)"),
    ):
        text = text_of(write_report(write_run(tmp_path / name, rows, *enabled)))
        assert f"25% of all heads after step 60 {words}" in text, name


def test_a_resumed_run_says_so(tmp_path: Path) -> None:
    rows = [*plain_rows(60), session_row("resume", 40, world_size=4), *(train_row(step) for step in (45, 50))]
    assert "4, resumed 1 time" in text_of(write_report(write_run(tmp_path / "run", rows)))


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<i>&run", plain_rows(), "--data.path", "<script>alert(1)</script>")
    path = write_report(folder)
    assert "<script>alert" not in path.read_text()
    assert "<i>" not in path.read_text()
    assert "<script>alert(1)</script>" in text_of(path)


def test_heads_that_were_static_before_are_marked(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    statistics = calibration()
    statistics.variance_LH[0, 1] = float("nan")
    statistics.live_LH[0, 1] = False
    statistics.save(folder / "saf" / "step-000060" / "stats.safetensors")
    path = write_report(folder)
    assert re.findall(r'data-head="(L\d+H\d+)" data-mark=", static already"', path.read_text()) == ["L0H1"]


def test_a_run_that_trained_for_a_time(tmp_path: Path) -> None:
    rows = [*plain_rows(55), finish_row(57, 12.5)]
    text = text_of(write_report(write_run(tmp_path / "run", rows, "--saf.enable=true", "--saf.matched_seconds=12.5")))
    assert (
        "Finished: step 57. The run was to train for 12.5 s instead of a number of steps, 12.5 s used; the learning "
        "rate was planned for 120 steps." in text
    )
    assert "Unfinished" not in text


def test_circuits_are_drawn_where_they_were_measured(tmp_path: Path) -> None:
    without = len(pictures(write_report(write_run(tmp_path / "without", plain_rows()))))
    rows = [
        {"kind": "circuits", "step": step, "qk_update": [1e-2, None], "ov_update": [1e-3, 0.0], **attention}
        for step, attention in ((20, {}), (40, {"entropy": [0.9, None], "sink_mass": [0.1, None]}))
    ]
    page = write_report(write_run(tmp_path / "with", [*plain_rows(), *rows]))
    assert len(pictures(page)) == without + 2
    assert "How far one step moves the circuits" in text_of(page)
    # numbers that a logarithmic axis cannot show make no figure
    nothing = {"kind": "circuits", "step": 20, "qk_update": [None], "ov_update": [0.0]}
    page = write_report(write_run(tmp_path / "nothing", [*plain_rows(), nothing]))
    assert "Circuits" not in text_of(page)


def test_undone_freezes_are_shown(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    log = folder / "metrics.jsonl"
    log.write_text(log.read_text() + json.dumps(undone_row(1100, 5, (3.0, 3.25))) + "\n")
    text = text_of(write_report(folder))
    assert "1 freeze was tried and undone" in text
    with log.open("a") as file:
        file.write(json.dumps(undone_row(1200, 5) | {"held_out_losses": [3.0, None]}) + "\n")
    assert "nan (perplexity nan) the loss was not a number" in text_of(write_report(folder))
    assert "Undone freezes" in text
    assert "more than was left of the budget (saf.loss_budget = 1.00% for all freezes)" in text
    assert (
        "1,100 1 more, 5 in all 3.0000 (perplexity 20.09) 3.2500 (perplexity 25.79) "
        "the loss rose by 0.2500, the perplexity by 28.40%" in text
    )


def test_damaged_lines_and_unknown_rows_are_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*plain_rows(), {"kind": "weather"}])
    log = folder / "metrics.jsonl"
    log.write_text(log.read_text() + "no row\n" * 7)
    text = text_of(write_report(folder))
    assert "metrics.jsonl: 7 lines are damaged and left out (line 27: it is no JSON; line 28" in text
    assert "; and 2 more)." in text
    assert "metrics.jsonl: 1 row has a kind that this version does not know ('weather') and cannot show." in text


def test_a_plan_and_statistics_of_different_models(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    calibration(num_layers=1).save(folder / "saf" / "step-000060" / "stats.safetensors")
    text = text_of(write_report(folder))
    assert "are of another model or sequence length than the plan there" in text
    assert "4 heads became static" in text


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", plain_rows())
    (tmp_path / "taken").mkdir()
    with pytest.raises(ValueError, match=r"taken: the report cannot be written \(Is a directory\); .* --out FILE"):
        write_report(folder, out=tmp_path / "taken")
    with pytest.raises(ValueError, match=r"page.html: the report cannot be written \(No such file or directory\)"):
        write_report(folder, out=tmp_path / "nowhere" / "page.html")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "taken"]


def test_an_older_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", plain_rows())
    (folder / "report.html").write_text("old")
    write_report(folder)
    assert "Finished" in (folder / "report.html").read_text()
    assert sorted(file.name for file in folder.iterdir()) == ["config.toml", "metrics.jsonl", "report.html"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", plain_rows())
    assert analysis_main(["report", str(folder), "--heads", "2"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    page = tmp_path / "page.html"
    assert analysis_main(["report", str(folder), "--out", str(page)]) == 0
    assert page.read_bytes() == (folder / "report.html").read_bytes()


def test_the_short_name_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", plain_rows())
    monkeypatch.setattr(sys, "argv", ["saf_titan.report", str(folder)])
    monkeypatch.delitem(sys.modules, "saf_titan.analysis.__main__", raising=False)
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("saf_titan.report", run_name="__main__")
    assert (folder / "report.html").is_file()


def test_errors_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([str(tmp_path)], "is no run's folder (it has no metrics.jsonl)"),
        ([str(tmp_path / "nowhere")], "nowhere does not exist: give the folder of a run, or a model"),
        ([str(tmp_path)] * 2, "metrics.jsonl: no such file"),
        ([], "RUN|MODEL"),
        ([".", "--heads", "-1"], "-1"),
    ):
        assert analysis_main(["report", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line


def test_processes_that_write_the_same_file_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    # as two processes do that finish a study together
    page = tmp_path / "report.html"
    texts = [f"{letter * 200_000}\n" for letter in "ab"]

    def write_often(text: str) -> None:
        for _ in range(50):
            write_whole(page, text)
            assert page.read_text() in texts

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write_often, texts))
    assert [path.name for path in tmp_path.iterdir()] == [page.name]
