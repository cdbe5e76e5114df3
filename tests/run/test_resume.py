"""What a run cannot start from is refused before anything is built, with the difference and the way out."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from saf_titan.config import RunConfig, load_config
from saf_titan.run.resume import SavedFreeze, find_checkpoint, model_settings, require_compatible
from tests.saf.plan.test_plan import EXAMPLE, T

WEIGHTS = ("--checkpoint.initial_load_path=x", "--checkpoint.initial_load_model_only=true")
LLAMA = ("--model.family=llama3", "--model.flavor=debugmodel")


def run_config(folder: Path, *words: str) -> RunConfig:
    return load_config(None, [f"--dump_folder={folder}", *words])


def checkpoint(folder: Path, *, matrix: str) -> Path:
    """A checkpoint of one weight and its moment, under torchtitan's names."""
    name = f"layers.0.attention.qkv_linear.{matrix}.weight"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        state = {"layers.0.attention.qkv_linear.wq.weight": torch.ones(2), "optimizer": {f"state.{name}.exp_avg": 1}}
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((f"--training.seq_len={T + 1}",), f"training.seq_len = {T + 1}, but the static heads"),
        ((f"--training.seq_len={T - 1}", "--saf.enable=true", "--saf.rate=0.5"), "saf.rate = 0.5 asks for more heads"),
        (
            (f"--training.seq_len={T}", "--saf.enable=true", "--saf.rate=0.5", "--saf.content=uniform"),
            'saf.content = "uniform", but the heads of .* have "mean"',
        ),
        ((f"--training.seq_len={T}", *LLAMA, "--model.fuse_qkv=true"), "fuse_qkv = true cannot hold"),
    ],
    ids=["longer", "more-heads", "content", "fused"],
)
def test_a_plan_that_does_not_fit(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_compatible(SavedFreeze(plan=EXAMPLE), run_config(tmp_path, *WEIGHTS, *words), tmp_path / "parent")


@pytest.mark.parametrize(
    "words",
    [
        (f"--training.seq_len={T}",),
        (f"--training.seq_len={T}", "--saf.enable=true", "--saf.rate=0.5"),
        (f"--training.seq_len={T}", "--saf.enable=true", "--saf.rate=0.25", "--saf.content=uniform"),
        (f"--training.seq_len={T - 1}", "--saf.enable=true", "--saf.rate=0.25"),
    ],
    ids=["as-long", "as-long-and-more-heads", "content-of-no-more-heads", "shorter"],
)
def test_a_plan_that_fits(tmp_path: Path, words: tuple[str, ...]) -> None:
    require_compatible(SavedFreeze(plan=EXAMPLE), run_config(tmp_path, *WEIGHTS, *words), tmp_path / "parent")


@pytest.mark.parametrize(
    ("matrix", "fuse_qkv", "message"),
    [("wqkv", "false", "one fused wqkv, but model.fuse_qkv = false"), ("wk", "true", "separate wq, wk and wv, but")],
)
def test_moments_of_other_projections(tmp_path: Path, matrix: str, fuse_qkv: str, message: str) -> None:
    words = (*LLAMA, f"--model.fuse_qkv={fuse_qkv}")
    parent = checkpoint(tmp_path / "parent", matrix=matrix)
    with pytest.raises(ValueError, match=message):
        require_compatible(SavedFreeze(), run_config(tmp_path / "run", *words), parent)
    require_compatible(SavedFreeze(), run_config(tmp_path / "run", *words, *WEIGHTS), parent)

    # a run goes on from its own checkpoint with moments, whatever it began with
    own = checkpoint(tmp_path / "run" / "checkpoint" / "step-4", matrix=matrix)
    with pytest.raises(ValueError, match=message):
        require_compatible(SavedFreeze(), run_config(tmp_path / "run", *words, *WEIGHTS), own)


def test_another_model(tmp_path: Path) -> None:
    saved = SavedFreeze(model=model_settings(run_config(tmp_path, "--model.num_kv_heads=4")))
    with pytest.raises(ValueError, match=r"num_kv_heads was 4 and is 12"):
        require_compatible(saved, run_config(tmp_path, *WEIGHTS), tmp_path / "parent")


def test_what_an_older_checkpoint_does_not_tell_is_not_compared(tmp_path: Path) -> None:
    run = run_config(tmp_path, *WEIGHTS)
    require_compatible(SavedFreeze(model='{"num_heads": 12}'), run, tmp_path / "parent")


def test_a_step_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    for step in (2, 4):
        checkpoint(tmp_path / f"step-{step}", matrix="wq")
    with pytest.raises(ValueError, match=r"load_step = 7, but the complete checkpoints in .* are of steps: 2, 4"):
        find_checkpoint(tmp_path, load_step=7)
