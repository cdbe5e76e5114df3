"""A trainer's checkpoint (torch.distributed.checkpoint) as plain nested dictionaries, without a process group.

The keys and shapes of the checkpoint are kept, so what is written loads wherever the original did.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from saf_titan.saf.container import write_file
from saf_titan.saf.plan import StaticPlan
from saf_titan.saf.rows import HeadShape, StaticRows, find_shape, remove_rows, restore_rows, zero_rows

_PLAN_PATH = ("train_state", "saf_plan")
_PLAN_TENSOR, _SHAPE_TENSOR = "saf_plan", "saf_shape"


def read_checkpoint(folder: Path, *, prefix: str = "") -> dict[str, Any]:
    """Everything in a checkpoint whose flat key begins with `prefix`, nested as it was saved.

    Raises ValueError if the folder holds no complete checkpoint.
    """
    if not (folder / ".metadata").is_file():
        raise ValueError(f"{folder} is not a complete checkpoint: it has no .metadata")
    metadata = dcp.FileSystemReader(folder).read_metadata()
    state: dict[str, Any] = {}
    for key, entry in metadata.state_dict_metadata.items():
        if key.startswith(prefix):
            value = None
            if isinstance(entry, TensorStorageMetadata):
                value = torch.empty(entry.size, dtype=entry.properties.dtype)
            _set(state, metadata.planner_data[key], value)
    with _one_process():
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def load_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Fill the tensors of a model's state dict from a checkpoint, of any sharding, in place.

    Raises ValueError, with nothing filled, unless the checkpoint has each of them in the same shape.
    """
    if not (folder / ".metadata").is_file():
        raise ValueError(f"{folder} is not a complete checkpoint: it has no .metadata")
    entries = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    for name, weight in weights.items():
        entry = entries.get(name)
        if not isinstance(entry, TensorStorageMetadata) or entry.size != weight.shape:
            found = (
                f"has it as {tuple(entry.size)}" if isinstance(entry, TensorStorageMetadata) else "has no such tensor"
            )
            raise ValueError(
                f"the model needs {name} of shape {tuple(weight.shape)}, and {folder} {found}: the configuration "
                "is of another model"
            )
    with _one_process():
        dcp.load(dict(weights), checkpoint_id=folder, no_dist=True)


def write_checkpoint(state: dict[str, Any], folder: Path) -> None:
    """Save nested dictionaries as a checkpoint. ValueError if the folder is there already."""
    if folder.exists():
        raise ValueError(f"{folder} exists already; choose another folder or remove it")
    with _one_process():
        dcp.save(state, checkpoint_id=folder, no_dist=True)


def model_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a checkpoint: its tensors outside the sections of the trainer."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def apply_plan(state: dict[str, Any], plan: StaticPlan, num_heads: int) -> list[str]:
    """Make a plan part of a checkpoint in place, as a freeze in training would have: rows, moments, and the plan.

    Returns the names of the changed tensors. Raises ValueError if the checkpoint has a plan, or the plan does not
    belong to a model of this shape.
    """
    section, key = _PLAN_PATH
    if key in state.get(section, {}):
        raise ValueError("the checkpoint has a plan already; apply a plan to the checkpoint before its freeze")
    weights = model_tensors(state)
    rows = StaticRows(plan, find_shape(weights, num_heads))
    changed = zero_rows(weights, rows)
    missing = [layer for layer in rows.heads if not any(f"layers.{layer}.attention." in name for name in changed)]
    if missing:
        raise ValueError(f"the plan has static heads in layers {missing}, which this checkpoint has not")
    moments = {name: value for name, value in state.get("optimizer", {}).items() if isinstance(value, Tensor)}
    changed += zero_rows(moments, rows)
    state.setdefault(section, {})[key] = plan.to_bytes()
    return changed


def export_compact(folder: Path, out: Path, num_heads: int) -> tuple[int, int]:
    """Write the weights of a frozen checkpoint to a safetensors file, without the dead query and key rows.

    Beside the weights the file has two tensors: `saf_plan`, the bytes of the plan's own file, and `saf_shape`,
    (query heads, key heads, head dim). Returns the number of parameters before and after.
    Raises ValueError if the checkpoint has no plan.
    """
    state = read_checkpoint(folder)
    section, key = _PLAN_PATH
    if key not in state.get(section, {}):
        raise ValueError(f"{folder} has no plan: only a checkpoint after a freeze has rows to leave out")
    weights, plan = model_tensors(state), StaticPlan.from_bytes(state[section][key], source=f"the plan in {folder}")
    shape = find_shape(weights, num_heads)
    compact = remove_rows(weights, StaticRows(plan, shape))
    extras = {
        _PLAN_TENSOR: torch.frombuffer(bytearray(plan.to_bytes()), dtype=torch.uint8),
        _SHAPE_TENSOR: torch.tensor(shape),
    }
    write_file(out, safetensors.torch.save(compact | extras))
    return sum(w.numel() for w in weights.values()), sum(w.numel() for w in compact.values())


def restore_full(model: Path, out: Path) -> StaticPlan:
    """Write what `export_compact` wrote with all rows again, zeros for the dead ones; returns the plan."""
    tensors = safetensors.torch.load(model.read_bytes())
    if not {_PLAN_TENSOR, _SHAPE_TENSOR} <= tensors.keys():
        raise ValueError(f"{model} holds no plan: it is not an export of a frozen checkpoint")
    plan = StaticPlan.from_bytes(bytes(tensors.pop(_PLAN_TENSOR).numpy()), source=f"the plan in {model}")
    rows = StaticRows(plan, HeadShape(*tensors.pop(_SHAPE_TENSOR).tolist()))
    write_file(out, safetensors.torch.save(restore_rows(tensors, rows)))
    return plan


def _set(state: dict[str, Any], path: tuple[Any, ...], value: Tensor | None) -> None:
    for part in path[:-1]:
        state = state.setdefault(part, {})
    state[path[-1]] = value


@contextmanager
def _one_process() -> Iterator[None]:
    """Silence the remark that no process group is used: one process reads and writes on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)", UserWarning)
        yield
