"""Tables of text: columns in line, and no control characters outside a terminal."""

from __future__ import annotations

import math

import pytest

from saf_titan.analysis.tables import number, stdout_is_terminal, text_table

ROWS = [["L0H0", "0.1"], ["L10H2", "+12.25"]]


def test_columns_are_in_line() -> None:
    assert text_table(("head", "x"), ROWS) == ["head        x", "L0H0      0.1", "L10H2  +12.25"]
    assert text_table(("head", "x"), []) == ["head  x"]


def test_a_terminal_shows_the_heading_in_bold() -> None:
    lines = text_table(("head", "x"), ROWS, is_terminal=True)
    assert lines[0] == "\x1b[1mhead        x\x1b[0m"
    assert lines[1:] == text_table(("head", "x"), ROWS)[1:]


def test_numbers() -> None:
    assert number(0.12345) == "0.123"
    assert number(0.12345, 1, sign=True) == "+0.1"
    assert number(math.nan) == "-"


def test_captured_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not stdout_is_terminal()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert stdout_is_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not stdout_is_terminal()
