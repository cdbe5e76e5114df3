"""The run's log survives a line that was cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.run.metrics import end_last_line


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b""), (b'{"a": 1}\n', b'{"a": 1}\n'), (b'{"a": 1}\n{"b', b'{"a": 1}\n{"b\n')]
)
def test_a_cut_line_is_ended(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(before)
    end_last_line(path)
    assert path.read_bytes() == after


def test_no_file_is_no_error(tmp_path: Path) -> None:
    end_last_line(tmp_path / "metrics.jsonl")
