"""One freeze of a run: its row in the log, its plan, and the statistics from which the heads were chosen."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from saf_titan.ops.attention_stats.stats import pooling_matrix
from saf_titan.report.rows import FreezeRow
from saf_titan.report.run_log import RunLog
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.plan import StaticHead, StaticPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class FreezeEvent:
    """A freeze with its plan and statistics, as far as they could be read."""

    freeze: FreezeRow
    plan: StaticPlan | None
    calibration: Calibration | None
    problem: str
    """Why the plan or the statistics are missing; empty if both are there."""

    @property
    def step(self) -> int:
        """Optimizer steps that were done before the freeze."""
        return self.freeze.step

    @property
    def new_heads(self) -> tuple[StaticHead, ...]:
        """Heads that this freeze made static, in the order in which they were chosen."""
        heads = self.plan.heads if self.plan else ()
        return tuple(sorted((head for head in heads if head.step == self.step), key=lambda head: head.rank))

    @property
    def num_model_heads(self) -> int | None:
        """Number of query heads of the whole model; None without statistics."""
        return self.calibration.variance_LH.numel() if self.calibration else None


def read_events(log: RunLog) -> list[FreezeEvent]:
    """Read all freezes of a run. A damaged or missing file becomes the event's `problem`."""
    return [_read_event(log.folder, freeze) for freeze in log.freezes]


def _read_event(run_folder: Path, freeze: FreezeRow) -> FreezeEvent:
    folder = run_folder / freeze.folder
    plan, calibration, problems = None, None, []
    try:
        plan = StaticPlan.load(folder / "plan.safetensors")
    except (OSError, ValueError) as error:
        problems.append(f"The plan cannot be read: {error}.")
    try:
        calibration = Calibration.load(folder / "stats.safetensors")
    except (OSError, ValueError) as error:
        problems.append(f"The statistics cannot be read: {error}.")
    if plan is not None and calibration is not None and not _belong_together(plan, calibration):
        problems.append(f"The statistics in {folder} are of another model or sequence length than the plan there.")
        calibration = None
    return FreezeEvent(freeze=freeze, plan=plan, calibration=calibration, problem=" ".join(problems))


def _belong_together(plan: StaticPlan, calibration: Calibration) -> bool:
    """Whether every head of the plan is in the statistics, at the same sequence length."""
    num_layers, num_heads = calibration.variance_LH.shape
    slots = [(h.layer, h.head) for h in plan.heads] + [(h.layer, h.head) for h in plan.skipped]
    return plan.T_fit == calibration.seq_len and all(layer < num_layers and head < num_heads for layer, head in slots)


def pooled_pattern(head: StaticHead, num_blocks: int, *, rows: int | None = None) -> Tensor:
    """Pool the pattern of a static head like `AttentionStats.mean_map_HPP`: (P, P), every row sums to 1.

    The result is exact unless `rows` limits how many rows of a block its mean is taken over; they lie evenly in the
    block. T / P rows of the pattern are computed at a time, which takes O(T^2 / P) memory.
    """
    T = len(head.pattern.vectors[0])
    pool_TP = pooling_matrix(T, num_blocks, dtype=torch.float64, device=torch.device("cpu"))
    ends_P = pool_TP.sum(0).cumsum(0).long().tolist()
    starts_P = [0, *ends_P[:-1]]

    def mean_row(start: int, end: int) -> Tensor:
        if rows is None or end - start <= rows:
            return head.pattern.rows(start, end).mean(0) @ pool_TP[:end]
        chosen = torch.linspace(start, end - 1, rows).round().long().tolist()
        return torch.stack([head.pattern.rows(i, i + 1)[0] @ pool_TP[: i + 1] for i in chosen]).mean(0)

    return torch.stack([mean_row(start, end) for start, end in zip(starts_P, ends_P, strict=True)])
