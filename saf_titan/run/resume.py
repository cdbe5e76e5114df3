"""Finds the checkpoint that a run starts from and reads its plan, before the model is built.

The heads of the plan must be static before the weights are loaded. Otherwise the run would silently go on with ordinary
attention, because static heads have query and key weights of zero, which ordinary attention accepts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from saf_titan.config import RunConfig
from saf_titan.fields.step_folders import is_complete
from saf_titan.heads.counts import head_count
from saf_titan.run.checkpoints import complete_checkpoints
from saf_titan.saf.install.checkpoint import read_checkpoint
from saf_titan.saf.install.integrity import newest_inside
from saf_titan.saf.plan.plan import StaticPlan

PLAN_KEY = "saf_plan"
"""Key of the serialised plan in ``Trainer.state_dict()``; absent before a freeze and in stock torchtitan."""

STATE_KEY = "saf_state"
"""Key of the result of ``Freezer.state()``; absent if that is None and in stock torchtitan."""

CLOCK_KEY = "saf_clock"
"""Key of the time that a run has taken; absent in stock torchtitan."""

MODEL_KEY = "saf_model"
"""Key of the result of ``model_settings()``; absent in stock torchtitan."""


@dataclass(frozen=True)
class SavedFreeze:
    """The entries that a freeze, and a resume after it, need from a checkpoint; None for each that is absent."""

    plan: StaticPlan | None = None
    state: bytes | None = None
    """``Freezer.state()`` of the run that wrote the checkpoint."""
    clock: str | None = None
    """``SpentTime`` as JSON."""
    model: str | None = None
    """``model_settings()`` of the run that wrote the checkpoint."""


def model_settings(run: RunConfig) -> str:
    """Return, as JSON, the keys of [model] that the weights and their meaning depend on.

    `hf.identity.model_identity` tells models apart by their weights as well; a run needs the keys alone, because its
    checkpoint holds its own weights.
    """
    model, shape = run.model, run.shape
    return json.dumps(
        {
            "family": model.family,
            "position": model.position,
            "num_layers": shape.num_layers,
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "dim": shape.dim,
            "vocab_size": shape.vocab_size,
            "rope_theta": model.rope_theta,
            "norm_eps": model.norm_eps,
            "bias": model.bias,
            "gelu": model.gelu,
        },
        sort_keys=True,
    )


def require_compatible(saved: SavedFreeze, run: RunConfig, checkpoint: Path) -> None:
    """Raise ValueError if ``run`` cannot start from ``checkpoint``, which holds ``saved``; the message says why."""
    if saved.model is not None:
        require_same_settings(saved.model, model_settings(run), source=str(checkpoint))
    if saved.plan is not None:
        _require_fitting_plan(saved.plan, run, checkpoint)
    if run.model.family == "gpt" and run.model.position == "learned":
        _require_enough_positions(run, checkpoint)
    if is_own(checkpoint, run) or not run.checkpoint.initial_load_model_only:
        _require_same_projections(run, checkpoint)


def is_own(checkpoint: Path, run: RunConfig) -> bool:
    """Return whether ``checkpoint`` belongs to ``run`` itself, and not to another run that it branches off from."""
    return checkpoint.parent == Path(run.dump_folder) / run.checkpoint.folder


def require_same_settings(saved: str, built: str, *, source: str) -> None:
    """Raise ValueError if two results of `model_settings` differ in a key that both have; the message lists these."""
    then, now = json.loads(saved), json.loads(built)
    changes = [f"model.{key} was {then[key]} and is {now[key]}" for key in now if key in then and then[key] != now[key]]
    if changes:
        raise ValueError(
            f"{source} is of another model: {'; '.join(changes)}; go on with the old values, or start a new run in "
            f"another dump_folder"
        )


def _require_fitting_plan(plan: StaticPlan, run: RunConfig, checkpoint: Path) -> None:
    """Raise ValueError if the run cannot go on with a plan.

    The model must support static heads, the patterns must be long enough for the run's sequences, and heads that are
    still to be frozen must get patterns of the same content and length.
    """
    saf, seq_len = run.saf, run.training.seq_len
    if run.model.fuse_qkv:
        raise ValueError(f"{checkpoint} has static heads, which model.fuse_qkv = true cannot hold; set it to false")
    fitted = f"the static heads of {checkpoint} are fitted to sequences of {plan.T_fit} tokens"
    if seq_len > plan.T_fit:
        raise ValueError(f"training.seq_len = {seq_len}, but {fitted}; lower it to that or less")
    if run.max_seq_len > plan.T_fit:
        raise ValueError(f"validator.lengths has {run.max_seq_len}, but {fitted}; leave longer ones out")
    wanted = head_count(run.shape.total_heads, saf.rate, saf.rounding)
    asks_for_more = saf.enable and saf.rate > plan.rate and wanted > len(plan.heads)
    if asks_for_more and saf.content != plan.content:
        raise ValueError(
            f"saf.rate = {saf.rate:g} asks for more heads, with saf.content = {json.dumps(saf.content)}, but the heads "
            f"of {checkpoint} have {json.dumps(plan.content)}, and all heads of a model need the same content; set "
            f"that content, or saf.enable = false to freeze no more heads"
        )
    if seq_len < plan.T_fit and asks_for_more:
        raise ValueError(
            f"saf.rate = {saf.rate:g} asks for more heads, fitted to training.seq_len = {seq_len}, but {fitted}; set "
            f"that length, or saf.enable = false to freeze no more heads"
        )


def _require_enough_positions(run: RunConfig, checkpoint: Path) -> None:
    """The table of learned positions is a weight, whose rows are the longest sequence of the run."""
    table = FileSystemReader(checkpoint).read_metadata().state_dict_metadata.get("pos_embeddings.weight")
    if isinstance(table, TensorStorageMetadata) and table.size[0] != run.max_seq_len:
        raise ValueError(
            f"{checkpoint} has {table.size[0]} learned positions, and the longest sequence of this run has "
            f"{run.max_seq_len} tokens (training.seq_len = {run.training.seq_len}, validator.lengths = "
            f"{list(run.validator.lengths)}); the two must be equal"
        )


def _require_same_projections(run: RunConfig, checkpoint: Path) -> None:
    """Raise ValueError if the checkpoint's moments do not fit ``model.fuse_qkv``.

    The weights of a checkpoint have the same names with fused and separate projections; the moments do not.
    """
    keys = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    moments = [key for key in keys if key.startswith("optimizer.")]
    is_fused = any(".wqkv." in key for key in moments)
    if moments and is_fused != run.model.fuse_qkv:
        raise ValueError(
            f"{checkpoint} has the moments of {'one fused wqkv' if is_fused else 'separate wq, wk and wv'}, but "
            f"model.fuse_qkv = {json.dumps(run.model.fuse_qkv)}; change that, or start a new run from the weights "
            f"alone with checkpoint.initial_load_path and checkpoint.initial_load_model_only = true"
        )


def find_checkpoint(folder: Path, *, load_step: int = -1, initial_load_path: str | None = None) -> Path | None:
    """Return the checkpoint that torchtitan's manager will load, or None for a run from scratch.

    It is the newest complete checkpoint in ``folder``, and ``initial_load_path`` if there is none.

    Raises ValueError if ``load_step`` is not complete or not the newest. From an older step the run would overwrite
    later checkpoints one by one, and a restart would take one that is not overwritten yet.
    """
    steps = complete_checkpoints(folder)
    newest = max(steps, default=-1)
    if load_step != -1:
        if load_step < newest:
            raise ValueError(
                f"checkpoint.load_step = {load_step}, but {folder} holds step {newest} of the same run; remove the "
                f"later checkpoints, or start a new run in another dump_folder with --checkpoint.initial_load_path "
                f"{folder / f'step-{load_step}'}"
            )
        if load_step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise ValueError(
                f"checkpoint.load_step = {load_step}, but the complete checkpoints in {folder} are of steps: {there}"
            )
        return steps[load_step]
    if newest >= 0:
        return steps[newest]
    return Path(initial_load_path) if initial_load_path else None


def read_freeze(checkpoint: Path) -> SavedFreeze:
    """Read the plan and our other entries from ``checkpoint``; needs no process group.

    Raises ValueError if the folder holds no complete checkpoint or a damaged one.
    """
    if not is_complete(checkpoint):
        newest = newest_inside(checkpoint)
        example = f" such as {newest}" if newest is not None else ""
        raise ValueError(
            f"{checkpoint} is no complete checkpoint (it has no .metadata): give the step-N folder of one{example}, by "
            f"checkpoint.load_step or checkpoint.initial_load_path"
        )
    try:
        # reads only our entries of the trainer's state, not the weights
        loaded = read_checkpoint(checkpoint, prefix="train_state.saf_").get("train_state", {})
    except (ValueError, OSError) as error:
        raise ValueError(f"{checkpoint} is damaged ({error}); remove it to go on from an older one") from error
    plan = None
    if PLAN_KEY in loaded:
        plan = StaticPlan.from_bytes(loaded[PLAN_KEY], source=f"the plan in {checkpoint}")
    return SavedFreeze(plan=plan, state=loaded.get(STATE_KEY), clock=loaded.get(CLOCK_KEY), model=loaded.get(MODEL_KEY))
