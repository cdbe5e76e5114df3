"""How a process of a run ends."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from saf_titan.config import load_config
from saf_titan.run.launch import _write_report


def test_a_report_that_fails_is_no_failure_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        # a folder without metrics.jsonl has nothing to report
        _write_report(load_config(None, [f"--dump_folder={tmp_path}"]))
    assert "The training is complete" in caplog.text
