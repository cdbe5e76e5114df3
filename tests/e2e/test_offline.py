"""The offline chain on a trained checkpoint: what the trainer's own freeze comes to, step by step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from saf_titan.saf.__main__ import main
from saf_titan.saf.install.checkpoint import read_checkpoint, write_checkpoint
from tests.e2e.runs import Run, train

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    """Two ranks, frozen after step 4."""
    return train(tmp_path_factory.mktemp("offline") / "run", *corpus_overrides, ranks=2)


def test_the_chain_gives_the_plan_and_the_losses_of_the_trainer(
    frozen: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    capsys.readouterr()
    assert main(["apply", str(before), str(plan), "--out", str(after)]) == 0
    # the plan and the checkpoint have the same weights
    assert capsys.readouterr().err == ""
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


def test_a_plan_that_is_applied_to_other_weights_is_said_and_to_another_model_refused(
    frozen: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, plan = frozen.folder / "checkpoint" / "step-4", frozen.folder / "saf/step-000004/plan.safetensors"
    state = read_checkpoint(before)
    state["layers.0.attention.qkv_linear.wq.weight"] *= 1.01
    write_checkpoint(state, tmp_path / "trained")
    assert main(["apply", str(tmp_path / "trained"), str(plan), "--out", str(tmp_path / "out")]) == 0
    assert f"note: {plan} is of other weights than those of {tmp_path / 'trained'}" in capsys.readouterr().err
    identity = json.loads(state["train_state"]["saf_model"])
    state["train_state"]["saf_model"] = json.dumps({**identity, "rope_theta": 5e5})
    write_checkpoint(state, tmp_path / "other")
    assert main(["apply", str(tmp_path / "other"), str(plan), "--out", str(tmp_path / "refused")]) == 2
    assert "is of another model than" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()


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
    # the folder of the run, and that of its checkpoints, name the newest checkpoint inside
    for command in (["calibrate", "--out", out], ["verify"], ["export", "--out", out]):
        for folder in (frozen.folder, frozen.folder / "checkpoint"):
            assert main([command[0], str(folder), *command[1:]]) == 2
            assert f"give one that lies in it, for example {last}\n" in capsys.readouterr().err
    assert not Path(out).exists()
