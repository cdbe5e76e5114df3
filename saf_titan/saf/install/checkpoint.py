"""A trainer's checkpoint (torch.distributed.checkpoint) as plain nested dictionaries, without a process group.

The keys and shapes of the checkpoint are kept, so what is written loads wherever the original did.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from saf_titan.fields.places import require_new_folder
from saf_titan.saf import container
from saf_titan.saf.calibrate.model_identity import QUERY_KEY, WEIGHTS, weights_digest
from saf_titan.saf.container import readable, write_file
from saf_titan.saf.install.integrity import (
    CheckedReader,
    DamagedCheckpoint,
    first_cause,
    read_index,
    require_complete,
)
from saf_titan.saf.install.rows import (
    HeadShape,
    StaticRows,
    count_layers,
    find_shape,
    query_key_weights,
    remove_rows,
    restore_rows,
    zero_rows,
)
from saf_titan.saf.plan.plan import StaticPlan

_PLAN_PATH = ("train_state", "saf_plan")
_MODEL_PATH = ("train_state", "saf_model")
_PLAN_TENSOR = "saf_plan"
_EXPORT, _FULL, _VERSION = "compact_model", "full_model", 1


def read_checkpoint(folder: Path, *, prefix: str = "") -> dict[str, Any]:
    """Return everything in a checkpoint whose flat key begins with `prefix`, nested as it was saved.

    Raises ValueError if the folder holds no complete checkpoint, or a damaged one; the message then names the file
    and what it held.
    """
    require_complete(folder)
    state: dict[str, Any] = {}
    with _reading(folder):
        metadata = read_index(folder)
        for key, entry in metadata.state_dict_metadata.items():
            if key.startswith(prefix):
                value = None
                if isinstance(entry, TensorStorageMetadata):
                    value = torch.empty(entry.size, dtype=entry.properties.dtype)
                _set(state, metadata.planner_data[key], value)
        dcp.load(state, storage_reader=CheckedReader(folder), no_dist=True)
    return state


def load_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Fill the tensors of a model's state dict from a checkpoint, of any sharding, in place.

    Raises ValueError, with nothing filled, unless the checkpoint has each of them in the same shape.
    """
    require_complete(folder)
    with _reading(folder):
        entries = read_index(folder).state_dict_metadata
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
    with _reading(folder):
        dcp.load(dict(weights), storage_reader=CheckedReader(folder), no_dist=True)


def write_checkpoint(state: dict[str, Any], folder: Path) -> None:
    """Save nested dictionaries as a checkpoint.

    Raises ValueError if the folder exists already, and OSError if it cannot be written.
    """
    require_new_folder(folder)
    with _one_process():
        try:
            dcp.save(state, checkpoint_id=folder, no_dist=True)
        except dcp.CheckpointException as error:
            cause = first_cause(error)
            raise OSError(f"{folder} cannot be written ({type(cause).__name__}: {cause})") from cause


def model_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a checkpoint: its tensors outside the sections of the trainer."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def apply_plan(state: dict[str, Any], plan: StaticPlan, num_heads: int | None = None) -> list[str]:
    """Apply a plan to a checkpoint in place, as a freeze in training would, and return the names of changed tensors.

    The rows that static heads no longer use and their moments become zero (of a pruned head also the value rows and
    the output columns), and the plan becomes a part of the checkpoint.

    Args:
        num_heads: query heads per layer; needed for a checkpoint of stock torchtitan, which does not store it.

    Raises ValueError, with nothing changed, if the checkpoint has a plan, or the plan is of another model.
    """
    section, key = _PLAN_PATH
    if key in state.get(section, {}):
        raise ValueError("the checkpoint has a plan already; apply a plan to the checkpoint before its freeze")
    weights = model_tensors(state)
    shape = find_shape(weights, _num_heads(state, num_heads))
    _require_same_size(plan, shape, num_layers=count_layers(weights), seq_len=_seq_len(state))
    rows = StaticRows(plan, shape)
    changed = zero_rows(weights, rows)
    moments = {name: value for name, value in state.get("optimizer", {}).items() if isinstance(value, Tensor)}
    changed += zero_rows(moments, rows)
    state.setdefault(section, {})[key] = plan.to_bytes()
    return changed


def checkpoint_identity(state: dict[str, Any]) -> dict[str, Any] | None:
    """The identity of the model of a checkpoint, as a freeze at its step would record it; see `model_identity`.

    state: of `read_checkpoint`, before `apply_plan`. None for a checkpoint of stock torchtitan, which does not tell.
    """
    section, key = _MODEL_PATH
    if (text := state.get(section, {}).get(key)) is None:
        return None
    with readable("the model's description in the checkpoint", "JSON text"):
        sizes: dict[str, Any] = json.loads(text)
    return {**sizes, WEIGHTS: weights_digest(QUERY_KEY, query_key_weights(model_tensors(state)))}


def export_compact(source: Path, out: Path, num_heads: int | None = None) -> tuple[int, int]:
    """Write the weights of a frozen model to a safetensors file, without the rows that static heads no longer use.

    A matrix that two names share is written once, under the name of the embedding. Beside the weights the file has the
    tensor `saf_plan`, the bytes of the plan's own file.

    Args:
        source: the folder of a trainer's checkpoint, or a file that `restore_full` wrote.
        num_heads: as in `apply_plan`.

    Returns the number of parameters before and after. Raises ValueError if there is no plan, or one of another model.
    """
    weights, plan, shape = _read_full(source, num_heads) if source.is_file() else _read_frozen(source, num_heads)
    _require_same_size(plan, shape, num_layers=count_layers(weights), seq_len=None)
    tied = _tied(weights)
    weights = {name: weight for name, weight in weights.items() if name not in tied}
    rows = StaticRows(plan, shape)
    _require_zero(weights, rows)
    compact = remove_rows(weights, rows)
    header = {"shape": list(shape), "tied": tied}
    write_file(out, container.pack(_EXPORT, _VERSION, header, compact | {_PLAN_TENSOR: _as_tensor(plan)}))
    return sum(w.numel() for w in weights.values()), sum(w.numel() for w in compact.values())


def restore_full(model: Path, out: Path) -> StaticPlan:
    """Undo `export_compact`: write its weights with all rows, zeros for those left out; return the plan.

    The plan is in the new file as well, as the tensor `saf_plan`: without it the static heads, whose query and key
    rows are zero, would attend uniformly. All other tensors equal those of the checkpoint.
    """
    header, tensors, plan = _unpack(model, _EXPORT)
    full = restore_rows(tensors, StaticRows(plan, HeadShape(*header["shape"])))
    full |= {name: full[other] for name, other in header["tied"].items()}
    write_file(
        out, container.pack(_FULL, _VERSION, {"shape": header["shape"]}, full | {_PLAN_TENSOR: _as_tensor(plan)})
    )
    return plan


def _read_frozen(folder: Path, num_heads: int | None) -> tuple[dict[str, Tensor], StaticPlan, HeadShape]:
    """Return weights, plan and head shape of a checkpoint after a freeze."""
    state = read_checkpoint(folder)
    section, key = _PLAN_PATH
    if key not in state.get(section, {}):
        raise ValueError(f"{folder} has no plan: only a checkpoint after a freeze has rows to leave out")
    weights = model_tensors(state)
    plan = StaticPlan.from_bytes(state[section][key], source=f"the plan in {folder}")
    return weights, plan, find_shape(weights, _num_heads(state, num_heads))


def _read_full(model: Path, num_heads: int | None) -> tuple[dict[str, Tensor], StaticPlan, HeadShape]:
    """Return weights, plan and head shape of a file that `restore_full` wrote."""
    header, weights, plan = _unpack(model, _FULL)
    shape = HeadShape(*header["shape"])
    if num_heads not in (None, shape.num_heads):
        raise ValueError(
            f"--num-heads {num_heads}, but {model} is of a model with {shape.num_heads} query heads per layer"
        )
    return weights, plan, shape


def _unpack(model: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor], StaticPlan]:
    """Return header, weights and plan of a file that `export_compact` or `restore_full` wrote."""
    header, tensors = container.unpack(container.read_file(model, kind), kind, _VERSION, source=str(model))
    plan = StaticPlan.from_bytes(bytes(tensors.pop(_PLAN_TENSOR).numpy()), source=f"the plan in {model}")
    return header, tensors, plan


def _as_tensor(plan: StaticPlan) -> Tensor:
    return torch.frombuffer(bytearray(plan.to_bytes()), dtype=torch.uint8)


def _num_heads(state: Mapping[str, Any], given: int | None) -> int:
    """Return the query heads per layer: from the checkpoint, or `given` if the checkpoint does not store them."""
    section, key = _MODEL_PATH
    identity = state.get(section, {}).get(key)
    if identity is None:
        if given is None:
            raise ValueError(
                "the checkpoint does not store its number of query heads (those of saf_titan do): give --num-heads"
            )
        return given
    with readable("the model's description in the checkpoint", "JSON text"):
        saved = int(json.loads(identity)["num_heads"])
    if given not in (None, saved):
        raise ValueError(f"--num-heads {given}, but the checkpoint is of a model with {saved} query heads per layer")
    return saved


def _seq_len(state: Mapping[str, Any]) -> int | None:
    """Return the length of the sequences a checkpoint was trained on; None if another data loader wrote it."""
    loader = state.get("dataloader")
    return loader.get("seq_len") if isinstance(loader, Mapping) else None


def _require_same_size(plan: StaticPlan, shape: HeadShape, *, num_layers: int, seq_len: int | None) -> None:
    """Raise ValueError, which names the difference, if a plan cannot belong to a model of this size."""
    if plan.heads and plan.heads[-1].layer >= num_layers:
        raise ValueError(
            f"the plan has static heads in layer {plan.heads[-1].layer}, but the model has {num_layers} layers"
        )
    if plan.record.heads and plan.record.heads != (num_layers, shape.num_heads):
        raise ValueError(
            "the plan is of a model with {} layers of {} heads, but the checkpoint's model has {} of {}".format(
                *plan.record.heads, num_layers, shape.num_heads
            )
        )
    if seq_len is not None and seq_len > plan.T_fit:
        raise ValueError(
            f"the plan is fitted to sequences of {plan.T_fit} tokens, but the checkpoint was trained on {seq_len}: "
            f"make the plan from a calibration of that length"
        )


def _require_zero(weights: Mapping[str, Tensor], rows: StaticRows) -> None:
    """Require that all rows to be left out are zero, as after a freeze; other rows belong to other heads."""
    for name, weight in weights.items():
        if (found := rows.live(name)) and weight.index_select(found[0], (~found[1]).nonzero().flatten()).any():
            raise ValueError(
                f"{name} is not zero where the plan's heads should have been: the number of query heads, or the plan, "
                f"is of another model"
            )


def _tied(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Map the name of each matrix with the bytes of an earlier one to the earlier name: a checkpoint holds both."""
    first: dict[tuple[torch.Size, str], str] = {}
    tied = {}
    # the order in which a file is read must not decide which of the names is kept
    for name, weight in sorted(weights.items(), key=lambda item: ("embedding" not in item[0], item[0])):
        if weight.ndim == 2:
            content = hashlib.sha256(weight.contiguous().view(torch.uint8).numpy().data).hexdigest()
            other = first.setdefault((weight.shape, content), name)
            if other != name:
                tied[name] = other
    return tied


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    try:
        with readable(folder, "checkpoint"), _one_process():
            try:
                yield
            except dcp.CheckpointException as error:
                raise first_cause(error) from error
    except ValueError as error:
        # the message of DamagedCheckpoint names file and tensor, which that of `readable` does not
        raise (error.__cause__ if isinstance(error.__cause__, DamagedCheckpoint) else error) from error


def _set(state: dict[str, Any], path: tuple[Any, ...], value: Tensor | None) -> None:
    for part in path[:-1]:
        state = state.setdefault(part, {})
    state[path[-1]] = value


@contextmanager
def _one_process() -> Iterator[None]:
    """Silence torch's warning that there is no process group, because one process is enough here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)", UserWarning)
        yield
