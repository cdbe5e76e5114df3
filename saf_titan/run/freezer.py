"""A freeze between two optimizer steps: measure, decide, install, and undo if the loss rises too much.

:meth:`Freezer.freeze` shows the order of these stages. The trainer decides when to call it, saves checkpoints around it
and reports the outcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from saf_titan.config import RunConfig
from saf_titan.config.own_sections import SafSection
from saf_titan.heads.counts import head_count
from saf_titan.heads.names import head_name
from saf_titan.run.calibration_data import Batch, CalibrationData
from saf_titan.run.measurement import Measurement, logged_progress
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.model_identity import Identity
from saf_titan.saf.install.compensate import NewWeights
from saf_titan.saf.install.guard import guard_heads
from saf_titan.saf.install.install import Overwritten, install, replace_weights, zero_unused_weights
from saf_titan.saf.install.pattern_training import PatternTraining
from saf_titan.saf.plan.agreement import require_agreement
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.freeze_state import FreezeState
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.schedule import FixedSchedule, LossBudget, LossBudgetSchedule, Schedule, ramp
from saf_titan.saf.select.gradient_ema import GradientEMA
from saf_titan.saf.select.registry import SELECTORS

logger = logging.getLogger()


@dataclass(frozen=True)
class FreezeResult:
    """The outcome of a freeze."""

    plan: StaticPlan
    calibration: Calibration
    accepted: bool
    """False if the held-out loss rose too much for the schedule; the freeze was then undone."""
    losses: tuple[float, float] | None
    """Held-out loss before and after the freeze, in nats; None if the schedule does not use it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage."""


class Freezer(Generic[Batch]):
    """Manages the static heads of one model: ``plan`` lists them, ``freeze`` adds some."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        settings: SafSection,
        schedule: Schedule,
        forward: Callable[[Batch], object],
        sequence_losses: Callable[[Batch], Tensor],
        group: dist.ProcessGroup | None,
        identity: Identity | None = None,
    ) -> None:
        """All arguments except `optimizer` and `schedule` are those of :class:`Measurement`."""
        self._measurement = Measurement(
            model, settings, forward=forward, sequence_losses=sequence_losses, group=group, identity=identity
        )
        self.attentions = self._measurement.attentions
        guard_heads(model, self.attentions)
        self._optimizer, self._group = optimizer, group
        self._settings, self._schedule = settings, schedule
        self._plan: StaticPlan | None = None
        self._loaded = FreezeState()
        self._pattern_training: PatternTraining | None = None
        if settings.enable and settings.pattern_lr:
            optimizer.register_step_post_hook(self._train_patterns)
        self._gradient: GradientEMA | None = None
        if settings.enable and SELECTORS[settings.selector].watches_gradients:
            self._gradient = GradientEMA(len(self.attentions), self.attentions[0].num_heads)
            # a pre-hook of the optimizer step runs after gradient clipping
            optimizer.register_step_pre_hook(self._average_gradients)

    @property
    def plan(self) -> StaticPlan | None:
        """The current static heads with their current patterns; None while every head is live."""
        return self._pattern_training.plan if self._pattern_training is not None else self._plan

    @property
    def num_heads(self) -> int:
        return sum(attention.num_heads for attention in self.attentions)

    @property
    def num_static_heads(self) -> int:
        return sum(len(attention.static_heads) for attention in self.attentions)

    def rate_due(self, step: int) -> float | None:
        """Return the share of heads, in (0, 1], to be static now, after ``step`` steps; None if nothing is due.

        Raises ValueError if a freeze is due and the gradient selector has averaged no gradients yet, as when the run
        was resumed at the freeze from a checkpoint without an average.
        """
        if not self._settings.enable:
            return None
        rate = self._schedule.next_rate(step, self._rate)
        # a step of a ramp may be too small for one more head
        if rate is None or head_count(self.num_heads, rate, self._settings.rounding) <= self.num_static_heads:
            return None
        if self._gradient is not None and not self._gradient.num_updates:
            raise ValueError(
                f'saf.selector = "{self._settings.selector}" averages gradients of the steps before a freeze, but the '
                f"checkpoint of step {step}, where heads are to be frozen, holds no average: set saf.step to about "
                f"{step + 20}, so that some gradients are averaged first, or choose another selector"
            )
        return rate

    def measure_attention(self, data: CalibrationData[Batch]) -> Calibration:
        """Return statistics of the live heads; a collective that changes nothing."""
        return self._measurement.calibrate(data, (), None, logged_progress())

    def restore(self, plan: StaticPlan) -> None:
        """Install the plan of a checkpoint; call it before the weights are loaded."""
        install(self.attentions, plan)
        self._accept(plan)

    def freeze(self, step: int, rate: float, data: CalibrationData[Batch]) -> FreezeResult:
        """Make a share ``rate`` of all heads static and return the outcome.

        Weights that static heads no longer use, and their moments, become zero; with ``saf.compensate``, their value or
        output weights change too. Live heads are not changed. Every rank must call it; nothing is changed if it raises.

        Raises ValueError where :func:`make_plan` does and for a held-out loss that is not finite, and RuntimeError if
        the ranks decided on different plans.
        """
        settings = self._settings
        seconds: dict[str, float] = {}
        with _timed(seconds, "calibrate"):
            calibration = self._measurement.calibrate(data, (settings.selector,), self._gradient, logged_progress())
        with _timed(seconds, "fit"):
            plan = make_plan(
                calibration,
                replace(settings, rate=rate),
                step=step,
                base_plan=self.plan,
                dense=partial(self._measurement.dense_patterns, data.batches),
            )
            require_agreement(plan)
            new_weights = self._measurement.compensated_weights(plan, data.batches)
        before = self._measurement.held_out_loss(data.batches) if self._schedule.measures else None
        changed: list[Overwritten] = []
        try:
            with _timed(seconds, "install"):
                install(self.attentions, plan)
                changed.append(zero_unused_weights(self.attentions, plan, self._optimizer.state))
                self._compensate(new_weights, data.batches[-1], changed)
            losses = (before, self._measurement.held_out_loss(data.batches)) if before is not None else None
            accepted = losses is None or self._schedule.judge(step, *losses)
        except BaseException:
            self._undo(changed)
            raise
        if accepted:
            self._accept(plan)
        else:
            self._undo(changed)
        if (end := self._schedule.end(self._rate)) is not None:
            logger.info(f"The schedule ends: {end}")
        return FreezeResult(plan, calibration, accepted=accepted, losses=losses, seconds=seconds)

    def state(self) -> bytes | None:
        """Return what a checkpoint must hold besides the plan, serialised; None if nothing."""
        if not self._settings.enable:
            # keep the loaded state for a later run with saf.enable = true, except the average of gradients, which
            # would be out of date by then
            return replace(self._loaded, gradient={}).to_bytes()
        return FreezeState(
            schedule=self._schedule.state_dict(),
            gradient=self._gradient.state_dict() if self._gradient is not None else {},
            moments=self._pattern_training.moments() if self._pattern_training is not None else {},
        ).to_bytes()

    def load_state(self, data: bytes) -> None:
        """Load the result of `state` from a checkpoint; parts that this run does not need are ignored."""
        state = self._loaded = FreezeState.from_bytes(data)
        if state.schedule and self._settings.enable:
            self._schedule.load_state_dict(state.schedule)
        if state.gradient and self._gradient is not None:
            self._gradient.load_state_dict(state.gradient)
        if self._pattern_training is not None:
            self._pattern_training.load_moments(state.moments)

    def summary(self) -> str:
        """Return the static heads by layer, for example ``L0:1,4 L3:0``; empty if there are none."""
        return " ".join(
            f"L{layer}:{','.join(map(str, attention.static_heads))}"
            for layer, attention in enumerate(self.attentions)
            if attention.static_heads
        )

    @property
    def _rate(self) -> float:
        """The requested share of static heads, or the actual share if rounding would give fewer than are static."""
        asked = self.plan.rate if self.plan is not None else 0.0
        if head_count(self.num_heads, asked, self._settings.rounding) < self.num_static_heads:
            return self.num_static_heads / self.num_heads
        return asked

    def _compensate(
        self, new_weights: Mapping[tuple[int, int], NewWeights], batch: Batch, changed: list[Overwritten]
    ) -> None:
        """Replace the weights of one head after the other; keep each replacement only if it lowers the loss of `batch`.

        changed: the replaced weights are appended to it, for `_undo`. Costs one forward a head, and one before.
        """
        if not new_weights:
            return
        first = lowest = self._measurement.held_out_loss([batch])
        kept = []
        for (layer, head), weights in new_weights.items():
            overwritten = replace_weights(self.attentions, {(layer, head): weights})
            changed.append(overwritten)
            loss = self._measurement.held_out_loss([batch])
            if loss < lowest:
                lowest = loss
                kept.append(head_name(layer, head))
            else:
                overwritten.restore()
                changed.pop()
        logger.info(
            f"Compensated {len(kept)} of {len(new_weights)} heads: loss {first:.5f} -> {lowest:.5f} "
            f"({', '.join(kept) or 'none'})"
        )

    def _undo(self, changed: Sequence[Overwritten]) -> None:
        """Restore the overwritten weights and moments, and install the former plan again."""
        for overwritten in reversed(changed):
            overwritten.restore()
        install(self.attentions, self.plan)
        # installing made new pattern tensors, and patterns in training must be attached to them
        if self.plan is not None:
            self._accept(self.plan)

    def _accept(self, plan: StaticPlan) -> None:
        """Make an installed plan the plan of the model; patterns that are being trained keep their moments."""
        training = None
        if self._settings.enable and self._settings.pattern_lr and plan.is_compact:
            training = PatternTraining(self.attentions, plan, self._settings.pattern_lr, self._group)
            if self._pattern_training is not None:
                training.load_moments(self._pattern_training.moments())
        self._plan, self._pattern_training = plan, training

    def _train_patterns(self, *_: object) -> None:
        if self._pattern_training is not None:
            self._pattern_training.step()

    def _average_gradients(self, *_: object) -> None:
        assert self._gradient is not None

        def gradient(projection: nn.Linear) -> Tensor:
            # the projections of a layer without live heads have no gradient
            weight = projection.weight
            return weight.grad if weight.grad is not None else torch.zeros_like(weight)

        self._gradient.update(
            [(gradient(a.qkv_linear.wq), gradient(a.qkv_linear.wk), a.n_kv_heads) for a in self.attentions]
        )


def freeze_schedule(run: RunConfig) -> Schedule:
    """Return the schedule of a run: after which steps heads become static, and how many."""
    saf, start = run.saf, run.freeze_step
    if saf.schedule == "ramp":
        return ramp(start, start + saf.ramp_steps, saf.rate, saf.interval)
    if saf.schedule == "loss_budget":
        return LossBudgetSchedule(
            LossBudget(
                start=start,
                interval=saf.interval,
                max_rate=saf.rate,
                num_heads=run.shape.total_heads,
                rounding=saf.rounding,
                increment=saf.increment,
                budget=saf.loss_budget,
                max_failures=saf.max_failures,
            )
        )
    return FixedSchedule([(start, saf.rate)])


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
