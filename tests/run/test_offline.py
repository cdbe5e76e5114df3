"""Calibrating a checkpoint in one process, with no trainer anywhere.

Covers saf/select/probe.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from saf_titan.config import RunConfig, load_config
from saf_titan.models import model_spec
from saf_titan.run.resume import MODEL_KEY, PLAN_KEY, model_settings
from saf_titan.saf.__main__ import main
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.install.checkpoint import write_checkpoint
from saf_titan.saf.plan.plan import StaticPlan
from tests.data.corpus import write_corpus
from tests.saf import synthetic
from tests.saf.plans import plan_of

L, H, T = 2, 3, synthetic.T
NO_SELECTOR = ("variance", "kl")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and the configuration of a run that froze nothing."""
    folder = tmp_path_factory.mktemp("offline")
    tokens = np.random.default_rng(0).integers(0, 63, size=3000)
    for name in ("corpus", "run"):
        (folder / name).mkdir()
    write_corpus(folder / "corpus", train=tokens[:1000], val=tokens[1000:], vocab_size=64, eot=63)
    (folder / "run" / "config.toml").write_text(
        f'data.path = "{folder / "corpus"}"\n'
        f'model = {{flavor = "debug", num_layers = {L}, num_heads = {H}, dim = 12, vocab_size = 64}}\n'
        f'training = {{seq_len = {T}, mixed_precision_param = "float32"}}\n'
        f"saf = {{calibration_sequences = 4}}\n"
    )
    return folder / "run"


def write(run_folder: Path, name: str, plan: StaticPlan | None) -> Path:
    """A checkpoint of a new model, as the trainer lays it out."""
    run: RunConfig = load_config(run_folder / "config.toml", [])
    torch.manual_seed(0)
    model = model_spec(run.model, run.shape, max_seq_len=T).model.build()
    model.init_weights()
    state = {MODEL_KEY: model_settings(run)} | ({PLAN_KEY: plan.to_bytes()} if plan is not None else {})
    folder = run_folder / "checkpoint" / name
    write_checkpoint({**model.state_dict(), "train_state": state}, folder)
    return folder


def plan(rate: float, content: str = "mean") -> StaticPlan:
    scores = [[0.1, 0.2, 0.9], [0.3, 0.4, 0.8]]
    return plan_of(synthetic.calibration(scores), step=4, rate=rate, content=content)


@pytest.mark.parametrize("content", ["mean", "prune"])
def test_every_score_side_by_side(run_folder: Path, content: str, tmp_path: Path) -> None:
    checkpoint = write(run_folder, f"step-{content}", plan(0.5, content))
    out = tmp_path / "stats"
    assert main(["calibrate", str(checkpoint), "--selector", "gate_taylor,redundancy,kl", "--out", str(out)]) == 0
    calibration = Calibration.load(out)
    assert calibration.live_LH.tolist() == [[False, False, True], [False, True, True]]
    assert calibration.record.heads == (L, H)
    table = calibration.all_scores()
    assert set(table) == {
        *NO_SELECTOR, "gate_taylor", "redundancy", "output_rms", "block_influence", "output_error"
    }  # fmt: skip
    for name, score_LH in table.items():
        assert torch.equal(score_LH.isfinite(), calibration.live_LH), name
        assert main(["explain", str(out), "--selector", name]) == 0


def test_without_a_selector_it_is_the_one_of_the_run(run_folder: Path, tmp_path: Path) -> None:
    checkpoint = write(run_folder, "step-plain", None)
    assert main(["calibrate", str(checkpoint), "--out", str(tmp_path / "stats")]) == 0
    assert set(Calibration.load(tmp_path / "stats").all_scores()) == set(NO_SELECTOR)


def test_what_cannot_be_calibrated_is_told(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "stats"
    whole, static = write(run_folder, "step-1", None), write(run_folder, "step-2", plan(1.0))
    for words, message in (
        ([str(static)], f"every head of {static} is static already"),
        ([str(whole), "--selector", "kl,qk_gradient"], f"{whole} holds no average: only a run with saf.enable = true"),
        ([str(tmp_path)], "is not a complete checkpoint"),
    ):
        assert main(["calibrate", *words, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
    assert not out.exists()
