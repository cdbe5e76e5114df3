"""One freeze of a run: its row in the log, its plan, and the statistics it was decided on."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from saf_titan.ops.attention_stats.stats import pooling_matrix
from saf_titan.report.run_log import Freeze, RunLog
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.plan import StaticHead, StaticPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class FreezeEvent:
    """A freeze with what could be read of it."""

    freeze: Freeze
    plan: StaticPlan | None
    calibration: Calibration | None
    problem: str
    """Why plan or statistics are missing; empty if they are not."""

    @property
    def step(self) -> int:
        """Optimizer steps that were done before the freeze."""
        return self.freeze.step

    @property
    def new_heads(self) -> tuple[StaticHead, ...]:
        """Heads this freeze made static, in the order they were chosen."""
        heads = self.plan.heads if self.plan else ()
        return tuple(sorted((head for head in heads if head.step == self.step), key=lambda head: head.rank))

    def scores(self) -> tuple[str, Tensor] | None:
        """Name and values (L, H) of the score to show, NaN for a head that was static before; None without statistics.

        It is the score the heads were ranked by, or the variance where they were ranked by none (random, a list).
        """
        if self.plan is None or self.calibration is None:
            return None
        table = self.calibration.all_scores()
        name = self.plan.selector if self.plan.selector in table else "variance"
        return name, table[name]


def read_events(log: RunLog) -> list[FreezeEvent]:
    """All freezes of a run. A damaged or missing file becomes the event's `problem`."""
    return [_read_event(log.folder, freeze) for freeze in log.freezes]


def _read_event(run_folder: Path, freeze: Freeze) -> FreezeEvent:
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
    return FreezeEvent(freeze=freeze, plan=plan, calibration=calibration, problem=" ".join(problems))


def pooled_pattern(head: StaticHead, num_blocks: int) -> Tensor:
    """The pattern of a static head, pooled like `AttentionStats.mean_map_HPP`: (P, P), every row sums to 1.

    Exact, in O(T^2 / P) memory: T / P rows at a time.
    """
    T = len(head.pattern.vectors[0])
    pool_TP = pooling_matrix(T, num_blocks, dtype=torch.float64, device=torch.device("cpu"))
    ends_P = pool_TP.sum(0).cumsum(0).long().tolist()
    starts_P = [0, *ends_P[:-1]]
    return torch.stack(
        [head.pattern.rows(start, end).mean(0) @ pool_TP[:end] for start, end in zip(starts_P, ends_P, strict=True)]
    )
