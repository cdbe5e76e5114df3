"""Every configuration that is shipped resolves to a run, without a device, data or weights.

Covers run/dry_run.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from saf_titan.config import load_config
from saf_titan.run.dry_run import describe
from saf_titan.train import main
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
def test_dry_run_describes_the_run(path: Path) -> None:
    run = load_config(path)
    text = describe(run, 4 if path.stem.startswith("1b") else 1)
    titles = (
        "Configuration",
        "Model",
        "Parameter groups",
        "Tokens",
        "Data",
        "Schedule",
        "Freeze",
        "Checkpoints",
        "Memory per rank",
    )
    for title in titles:
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


def test_command_line_prints_and_stops(
    tmp_path: Path,
    corpus_overrides: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--config", str(ROOT / "configs" / "debug_cpu.toml"), "--dry-run", "--saf.calibration_sequences=8"]
    assert main([*words, *corpus_overrides]) == 0
    output = capsys.readouterr().out
    assert "8,240,400 parameters" in output
    assert "60,000 training tokens, 6,000 held out" in output
    # 300 steps of 2 sequences of 256 tokens
    assert "2.56 epochs over the training tokens (234 windows of 256)" in output
    assert "matrix products in float32" in output

    # without data all else is said, and the run is refused
    assert main(words) == 2
    captured = capsys.readouterr()
    assert "8,240,400 parameters" in captured.out
    assert "data.path must be a folder written by" in captured.err
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


def test_keys_without_effect_are_named_behind_the_configuration() -> None:
    path = ROOT / "configs" / "124m_4k_saf25.toml"
    assert "Keys without effect" not in describe(load_config(path))
    text = describe(load_config(path, ["--saf.ramp_steps=7", "--report.heads=3"]))
    blocks = text.split("\n\n")
    titles = [block.splitlines()[0] for block in blocks]
    assert blocks[titles.index("Keys without effect")].splitlines()[1:] == [
        '  saf.ramp_steps has no effect without saf.schedule = "ramp"'
    ]


def test_matrices_show_their_size() -> None:
    text = describe(
        load_config(ROOT / "configs" / "124m_4k_saf25.toml", ["--saf.content=sharp", "--saf.max_dense_gib=3"])
    )
    assert "T x T matrices, 2.25 GiB" in text


def test_calibration_sequences_that_ranks_do_not_divide() -> None:
    text = describe(load_config(ROOT / "configs" / "1b_8k_saf25.toml"), 32)
    assert "calibrated on 32 held-out sequences" in text
    assert "saf.calibration_sequences = 16 becomes 32, the next multiple of the 32 ranks" in text


def test_batches_of_calibration_show_what_they_keep() -> None:
    words = ["--saf.enable=true", "--saf.calibration_sequences=32", "--saf.calibration_batch_size=8"]
    words += ["--training.mixed_precision_param=bfloat16"]
    config = load_config(ROOT / "configs" / "124m_4k_saf25.toml", words)
    # 32 sequences x 4096 tokens x 12 layers x (12 + 12) heads x 64 numbers of 2 bytes
    for world_size, expected in (
        (1, "4.50 GiB (none with saf.calibration_batch_size = 32)"),
        (2, "2.25 GiB (none"),
    ):
        assert f"keeps the queries and keys of all layers, {expected}" in describe(config, world_size)
    assert "keeps the queries and keys" not in describe(config, 4)
