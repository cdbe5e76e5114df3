"""The model of a checkpoint, ready for generation: its weights, its plan, and the length it is defined for."""

from __future__ import annotations

# first: it must precede every other torchtitan module
from saf_titan import compat  # isort: skip

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torchtitan.config import TORCH_DTYPE_MAP

from saf_titan.config import RunConfig, load_config
from saf_titan.fields.step_folders import INDEX, is_complete
from saf_titan.generate.extrapolate import extended_plan
from saf_titan.models import model_spec
from saf_titan.models.decoder import FreezableDecoder
from saf_titan.run.checkpoints import complete_checkpoints
from saf_titan.run.folder import CONFIG_FILE
from saf_titan.run.offline import load_model
from saf_titan.run.precision import compute_precision
from saf_titan.run.resume import model_settings, read_freeze, require_same_settings
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.plan import StaticPlan


@dataclass(frozen=True)
class Source:
    """A checkpoint and the configuration of its run."""

    run: RunConfig
    checkpoint: Path
    plan: StaticPlan | None


def find_source(path: Path, config: Path | None = None) -> Source:
    """Return a checkpoint with the configuration of its run.

    Args:
        path: a checkpoint, <run>/checkpoint/step-N; or a run's folder, or the folder of its checkpoints, either of
            which stands for the newest checkpoint.
        config: TOML file of the run; by default the config.toml that the run left in its folder.

    Raises ValueError if there is no complete checkpoint or no configuration, or if they are of different models.
    """
    if is_complete(path):
        run = _read_config(config or path.resolve().parent.parent / CONFIG_FILE)
        checkpoint = path
    elif steps := complete_checkpoints(path):
        run = _read_config(config or path.resolve().parent / CONFIG_FILE)
        checkpoint = steps[max(steps)]
    elif (path / CONFIG_FILE).is_file():
        run = _read_config(config or path / CONFIG_FILE)
        steps = complete_checkpoints(path / run.checkpoint.folder)
        if not steps:
            raise ValueError(
                f"{path / run.checkpoint.folder} holds no complete checkpoint: train with checkpoint.enable"
            )
        checkpoint = steps[max(steps)]
    else:
        raise ValueError(
            f"{path} is neither a checkpoint (it has no {INDEX}), nor a folder of checkpoints (no step-N), nor a run's "
            f"folder (no {CONFIG_FILE}), nor a model of transformers (no config.json)"
        )
    saved = read_freeze(checkpoint)
    # both forms have the same weights in a checkpoint, and only separate projections can have static heads
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, fuse_qkv=False))
    if saved.model is not None:
        require_same_settings(saved.model, model_settings(run), source=str(checkpoint))
    return Source(run, checkpoint, saved.plan)


def load_for_generation(
    source: Source, *, length: int, extrapolate: bool = False, dtype: str | None = None
) -> FreezableDecoder:
    """Load the model of a checkpoint with its static heads, in evaluation mode, on the accelerator if there is one.

    Args:
        length: number of tokens of the longest sequence.
        extrapolate: allow a `length` beyond those of training and of the fit; see `extrapolate.py`.
        dtype: "float32" or "bfloat16"; None for the precision of the run's training.

    Raises ValueError if the checkpoint is damaged or of another model, or cannot be extrapolated.
    """
    run, plan = source.run, source.plan
    longest = max(length, run.training.seq_len) if extrapolate else run.training.seq_len
    if extrapolate and run.model.position == "learned" and run.model.family == "gpt":
        # learned positions are weights and cannot be extended; `length_limit` then reports the length
        longest = run.training.seq_len
    spec = model_spec(run.model, run.shape, max_seq_len=longest)
    for layer in spec.model.layers if extrapolate else ():
        if layer.attention.rope.max_seq_len < longest:
            layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=longest)
    if extrapolate and plan is not None and plan.T_fit < longest:
        plan = extended_plan(plan, longest)
    device = torch.device("cpu" if compat.is_cpu() else torch.accelerator.current_accelerator() or "cpu")
    model = load_model(spec, source.checkpoint, device, TORCH_DTYPE_MAP[dtype or compute_precision(run)])
    install([layer.attention for layer in cast(FreezableDecoder, model).layers.values()], plan)
    return cast(FreezableDecoder, model.eval())


def _read_config(path: Path) -> RunConfig:
    if not path.is_file():
        raise ValueError(f"{path} is missing: give the TOML file of the run with --config")
    return load_config(path)
