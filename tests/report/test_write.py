"""The page of every kind of run: complete, self-contained, and honest about what is missing."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from saf_titan.report import write_report
from saf_titan.report.__main__ import main as report_main
from saf_titan.saf.plan.plan import StaticPlan
from tests.report.runs import (
    calibration,
    plain_rows,
    session_row,
    train_row,
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
            self.silent += tag in ("svg", "style")

        def handle_endtag(self, tag: str) -> None:
            self.silent -= tag in ("svg", "style")

        def handle_data(self, data: str) -> None:
            if not self.silent:
                self.words.append(data)

    reader = Reader()
    reader.feed(path.read_text())
    return " ".join(" ".join(reader.words).split())


def pictures(path: Path) -> list[ElementTree.Element]:
    """All inline pictures; each must be well-formed by itself."""
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", path.read_text(), re.DOTALL)]


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
        "3.7500 validation loss just before",
        "3.8125 validation loss just after (+0.0625)",
        "3.2500 validation loss, step 120",
        "0.5 seconds a step, before",
        "0.4 seconds a step, after (1.250x as fast)",
        "1.88 seconds for the freeze (calibrate 1.5, fit 0.25, install 0.12)",
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
    _, scores, _ = pictures(path)
    marks = [
        len(list(group.iter("{http://www.w3.org/2000/svg}use")))
        for group in scores.iter()
        if "PathCollection" in group.get("id", "")
    ]
    assert marks == [len(plan.heads), len(plan.skipped)]


def test_three_pictures_that_take_the_colour_of_the_page(frozen_report: Path) -> None:
    assert len(pictures(frozen_report)) == 3
    source = frozen_report.read_text()
    assert source.count("currentColor") > 10
    assert "#010203" not in source
    assert source.count('role="img" aria-label="') == 3


def test_the_page_loads_nothing(frozen_report: Path) -> None:
    source = frozen_report.read_text()
    assert "<script" not in source
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
    # two maps a head; the colour bar of the scores is an image too
    assert images == 2 * min(heads, 4) + 1
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
    assert "nan training loss, last logged" in text


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
    assert len(pictures(path)) == 1


def test_a_resumed_run_says_so(tmp_path: Path) -> None:
    rows = [*plain_rows(60), session_row("resume", 40, world_size=4), *(train_row(step) for step in (45, 50))]
    assert "4, resumed 1 time" in text_of(write_report(write_run(tmp_path / "run", rows)))


def test_names_are_escaped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<i>&run", plain_rows(), "--data.path", "<script>alert(1)</script>")
    path = write_report(folder)
    assert "<script" not in path.read_text()
    assert "<i>" not in path.read_text()
    assert "<script>alert(1)</script>" in text_of(path)


def test_heads_that_were_static_before_are_named_so(tmp_path: Path) -> None:
    folder = write_frozen_run(tmp_path / "run")
    statistics = calibration()
    statistics.variance_LH[0, 1] = float("nan")
    statistics.save(folder / "saf" / "step-000060" / "stats.safetensors")
    path = write_report(folder)
    # glyphs are drawn as outlines, with the word as a comment
    assert path.read_text().count("<!-- static -->") == 1


def test_an_older_report_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", plain_rows())
    (folder / "report.html").write_text("old")
    write_report(folder)
    assert "Finished" in (folder / "report.html").read_text()
    assert sorted(file.name for file in folder.iterdir()) == ["config.toml", "metrics.jsonl", "report.html"]


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", plain_rows())
    monkeypatch.setattr(sys, "argv", ["report", str(folder), "--heads", "2"])
    assert report_main() == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    assert report_main() == 1
    assert "metrics.jsonl: cannot be read" in capsys.readouterr().err
