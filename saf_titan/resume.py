"""Reading the plan of a checkpoint before the model is built.

The running model is a function of (config, weights, plan): heads that the plan makes static must be static before the
weights are loaded, else the run would go on, silently, with ordinary attention.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch.distributed.checkpoint as dcp

from saf_titan.saf.plan import StaticPlan

PLAN_KEY = "saf_plan"
"""Key of the serialised plan in ``Trainer.state_dict()``; absent before a freeze, as in stock torchtitan."""

STATE_KEY = "saf_state"
"""Key of what the schedule and the selector must remember; absent where that is nothing."""


@dataclass(frozen=True)
class SavedFreeze:
    """What a checkpoint knows about static heads."""

    plan: StaticPlan | None = None
    state: bytes | None = None
    """``Freezer.state()``; None if the checkpoint has none."""


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


def read_freeze(checkpoint: Path) -> SavedFreeze:
    """The plan and the state in ``checkpoint``.

    Needs no process group. Raises ValueError if the folder holds no complete checkpoint or a damaged plan.
    """
    if not (checkpoint / ".metadata").is_file():
        raise ValueError(
            f"checkpoint {checkpoint} is missing or unfinished (it has no .metadata); choose another step with "
            f"checkpoint.load_step or remove the folder"
        )
    keys = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    present = {key: b"" for key in (PLAN_KEY, STATE_KEY) if f"train_state.{key}" in keys}
    if not present:
        return SavedFreeze()
    state = {"train_state": present}
    with warnings.catch_warnings():
        # one process reads two keys on purpose
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    loaded = state["train_state"]
    plan = None
    if PLAN_KEY in loaded:
        plan = StaticPlan.from_bytes(loaded[PLAN_KEY], source=f"the plan in {checkpoint}")
    return SavedFreeze(plan=plan, state=loaded.get(STATE_KEY))
