"""Reading the plan of a checkpoint before the model is built.

The running model is a function of (config, weights, plan): heads that the plan makes static must be static before the
weights are loaded, else the run would go on, silently, with ordinary attention.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import torch.distributed.checkpoint as dcp

from saf_titan.saf.plan import StaticPlan

PLAN_KEY = "saf_plan"
"""Key of the serialised plan in ``Trainer.state_dict()``; absent before a freeze, as in stock torchtitan."""

_CHECKPOINT_KEY = f"train_state.{PLAN_KEY}"


def find_checkpoint(folder: Path, *, load_step: int = -1, initial_load_path: str | None = None) -> Path | None:
    """The checkpoint that torchtitan's manager will load, by the same rules: complete folders only, newest first."""
    if load_step != -1:
        return folder / f"step-{load_step}"
    steps = [
        int(match[1])
        for entry in (folder.iterdir() if folder.is_dir() else ())
        # the metadata is written last: without it the checkpoint is unfinished
        if (match := re.fullmatch(r"step-(\d+)", entry.name)) and (entry / ".metadata").is_file()
    ]
    if steps:
        return folder / f"step-{max(steps)}"
    return Path(initial_load_path) if initial_load_path else None


def read_plan(checkpoint: Path) -> StaticPlan | None:
    """The plan in ``checkpoint``, or None if heads were not frozen yet.

    Needs no process group. Raises ValueError if the folder holds no complete checkpoint or a damaged plan.
    """
    if not (checkpoint / ".metadata").is_file():
        raise ValueError(
            f"checkpoint {checkpoint} is missing or unfinished (it has no .metadata); choose another step with "
            f"checkpoint.load_step or remove the folder"
        )
    keys = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    if _CHECKPOINT_KEY not in keys:
        return None
    state: dict[str, dict[str, bytes]] = {"train_state": {PLAN_KEY: b""}}
    with warnings.catch_warnings():
        # one process reads one key on purpose
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return StaticPlan.from_bytes(state["train_state"][PLAN_KEY], source=f"the plan in {checkpoint}")
