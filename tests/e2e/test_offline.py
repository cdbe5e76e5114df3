"""The offline chain on a trained checkpoint: what the trainer's own freeze comes to, step by step."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.saf.__main__ import main
from tests.e2e.runs import Run, train

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    """Two ranks, frozen after step 4."""
    return train(tmp_path_factory.mktemp("offline") / "run", *corpus_overrides, ranks=2)


def test_the_chain_gives_the_plan_and_the_losses_of_the_trainer(frozen: Run, tmp_path: Path) -> None:
    before, event = frozen.folder / "checkpoint" / "step-4", frozen.folder / "saf" / "step-000004"
    stats, plan = tmp_path / "stats", tmp_path / "plan"
    # the weights of two ranks in one process; the run's own config.toml tells the rest
    assert main(["calibrate", str(before), "--out", str(stats)]) == 0
    assert stats.read_bytes() == (event / "stats.safetensors").read_bytes()
    assert main(["fit", str(stats), "--heads", "L1H0"]) == 0
    assert main(["select", str(stats), "--rate", "0.25", "--step", "4", "--out", str(plan)]) == 0
    assert plan.read_bytes() == (event / "plan.safetensors").read_bytes()

    # going on from the applied plan is going on from the trainer's freeze
    after = tmp_path / "run" / "checkpoint" / "step-4"
    assert main(["apply", str(before), str(plan), "--out", str(after)]) == 0
    resumed = train(tmp_path / "run", "--checkpoint.interval", "1000", config=frozen.folder / "config.toml", ranks=2)
    assert resumed.losses() == {step: loss for step, loss in frozen.losses().items() if step > 4}


def test_statistics_of_what_is_left_after_a_freeze(
    frozen: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last, stats = frozen.folder / "checkpoint" / "step-8", tmp_path / "stats"
    arguments = ["--sequences", "4", "--selector", "output_error,gate_taylor", "--out", str(stats)]
    assert main(["calibrate", str(last), *arguments]) == 0
    printed = capsys.readouterr().out
    assert "6 live heads on 4 sequences of 64 tokens; scores variance, kl, output_rms" in printed
    assert "gate_taylor" in printed
    base = str(frozen.folder / "saf" / "step-000004" / "plan.safetensors")
    arguments = ["--selector", "output_error", "--max-fit-kl", "9", "--base", base, "--out", str(tmp_path / "plan")]
    assert main(["select", str(stats), "--rate", "0.5", *arguments]) == 0
    assert "4 static heads" in capsys.readouterr().out


def test_another_model_and_too_little_data_are_refused(
    frozen: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last, out = str(frozen.folder / "checkpoint" / "step-8"), str(tmp_path / "stats")
    other = tmp_path / "other.toml"
    other.write_text((frozen.folder / "config.toml").read_text().replace("num_heads = 4", "num_heads = 2"))
    for arguments, message in (
        (["--config", str(other)], "num_heads was 4 and is 2"),
        (["--sequences", "1000"], "has 46 windows of 64 tokens"),
        (["--data", str(tmp_path)], "manifest.json"),
        (["--selector", "variance,qk_gradient"], "holds no average: only a run with"),
    ):
        assert main(["calibrate", last, *arguments, "--out", out]) == 2
        assert message in capsys.readouterr().err
    assert main(["calibrate", str(frozen.folder / "checkpoint"), "--out", out]) == 2
    assert "checkpoint is not a complete checkpoint" in capsys.readouterr().err
    assert not Path(out).exists()
