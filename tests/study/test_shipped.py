"""Every study that comes with the package resolves. Covers study/dry_run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config.packaged import STUDIES, packaged_names
from saf_titan.study.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", packaged_names(STUDIES))
def test_a_dry_run_says_what_the_study_would_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([name, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Study {name}: ")
    assert "ordinary" in text
    assert "time       unknown: no run of this study has been timed" in text
    # nothing is written
    assert not list(tmp_path.iterdir())


def test_the_guide_names_every_study() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text()
    assert [name for name in packaged_names(STUDIES) if f"`{name}`" not in text] == []


def test_arms_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["124m_4k_controls", "--dry-run", "--arms", "same heads pruned 25 %", "--seeds", "1337"]
    assert main([*words, "--saf.calibration_sequences", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line[:24].strip() for line in lines[lines.index("") + 3 :][:4]]
    assert names == ["parent to step 2500", "ordinary", "mean 25 %", "same heads pruned 25 %"]
    assert "36 of 144 heads of mean 25 %, prune, after step 2,500" in "\n".join(lines)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["124m_4k_contrls"], "no such file; did you mean 124m_4k_controls?"),
        (["124m_4k", "--dry-run", "--saf.rat", "0.5"], "command line: [saf] rat"),
        (["124m_4k"], "[data] path"),
        ([], "the following arguments are required: STUDY"),
    ],
)
def test_mistakes_are_said_before_anything_is_trained(
    words: list[str],
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert fault in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
