"""Every configuration that is shipped resolves to a run, without a device, data or weights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from saf_titan.config import load_config
from saf_titan.run.dry_run import describe
from tests.e2e.runs import ROOT, environment

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
NAMES = {
    "debug_cpu",
    "124m_4k",
    "124m_4k_saf25",
    "124m_4k_saf50",
    "124m_8k_saf25",
    "124m_16k_saf25",
    "1b_8k",
    "1b_8k_saf25",
    "1b_8k_saf50",
    "124m_4k_qk10",
    "llama3_debug_cpu",
}


def test_all_published_runs_are_there() -> None:
    assert {path.stem for path in CONFIGS} >= NAMES


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_dry_run_describes_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4" if path.stem.startswith("1b") else "1")
    run = load_config(path)
    text = describe(run)
    for title in ("Configuration", "Model", "Parameter groups", "Tokens", "Schedule", "Freeze", "Memory per rank"):
        assert re.search(rf"^{title}", text, re.MULTILINE), title
    assert "not divisible" not in text
    if run.saf.enable:
        total = run.shape.num_layers * run.shape.num_heads
        assert f"{round(run.saf.rate * total)} of {total} heads" in text


def test_published_sizes() -> None:
    text = describe(load_config(ROOT / "configs" / "124m_4k_saf25.toml"))
    assert "123,587,328 parameters" in text
    assert "491,520 tokens per step" in text
    assert "2,457,600,000 tokens" in text
    assert "after step 2,500: 36 of 144 heads" in text


def test_ratio_shows_in_the_group_table() -> None:
    text = describe(load_config(ROOT / "configs" / "124m_4k_qk10.toml"))
    assert re.search(r"qk +24 +14,155,776 +0\.006", text)
    assert re.search(r"ov +24 +14,155,776 +0\.0006", text)


def test_command_line_prints_and_stops(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "saf_titan.train", "--config", str(ROOT / "configs" / "debug_cpu.toml"), "--dry-run"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "8,240,400 parameters" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_errors_come_without_a_trace_and_before_torch(tmp_path: Path) -> None:
    config = tmp_path / "bad.toml"
    config.write_text('[training]\nstesp = 3\nsteps = "many"\n')
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "saf_titan.train", "--config", str(config)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    message = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    assert len(message) == 2
    assert "stesp" in message[0]
    assert "steps" in message[0]
    assert "many" in message[1]
    assert not re.search(r"\| +torch$", result.stderr, re.MULTILINE)


def test_matrices_show_their_size() -> None:
    text = describe(
        load_config(ROOT / "configs" / "124m_4k_saf25.toml", ["--saf.content=sharp", "--saf.max_dense_gib=3"])
    )
    assert "T x T matrices: 2.25 GiB" in text


def test_batches_of_calibration_show_what_they_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--saf.enable=true", "--saf.calibration_sequences=32", "--saf.calibration_batch_size=8"]
    config = load_config(ROOT / "configs" / "124m_4k_saf25.toml", words)
    # 32 sequences x 4096 tokens x 12 layers x (12 + 12) heads x 64 numbers of 2 bytes
    for world_size, expected in (
        ("1", "4.50 GiB (none with saf.calibration_batch_size = 32)"),
        ("2", "2.25 GiB (none"),
    ):
        monkeypatch.setenv("WORLD_SIZE", world_size)
        assert f"keeps queries and keys of all layers: {expected}" in describe(config)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert "keeps queries and keys" not in describe(config)
