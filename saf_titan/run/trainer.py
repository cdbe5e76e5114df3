"""torchtitan's Trainer with a freeze between two steps, a plan in the checkpoint, and a clean stop."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torchtitan.distributed.cudagraph import cudagraph_teardown, wrap_with_cuda_graph
from torchtitan.tools.logging import logger

from saf_titan.config import to_toml
from saf_titan.data.cursor import CursorLoader
from saf_titan.report.rows import FinishRow, ResumeRow, StartRow
from saf_titan.run.announce import opening_lines, record_freeze
from saf_titan.run.backends import backend_lines
from saf_titan.run.calibration_data import TokenBatch, calibration_loader, read_calibration_data
from saf_titan.run.circuit_metrics import CircuitMetrics, held_out_sequences
from saf_titan.run.folder import CONFIG_FILE
from saf_titan.run.freezer import Freezer, FreezeResult, freeze_schedule
from saf_titan.run.resume import (
    CLOCK_KEY,
    MODEL_KEY,
    PLAN_KEY,
    STATE_KEY,
    SavedFreeze,
    find_checkpoint,
    is_own,
    model_settings,
    read_freeze,
    require_compatible,
)
from saf_titan.run.sound_trainer import SoundTrainer
from saf_titan.run.time_budget import RunClock, SpentTime, TimeBudget

_TITAN_DIVERGED = "Loss is not finite"
"""The beginning of torchtitan's error message."""


class SAFTrainer(SoundTrainer):
    """A run of ``RunConfig.training.steps`` optimizer steps in which heads may become static.

    Static heads change only between optimizer steps. The plan of a checkpoint is read before the model is built and
    installed before the weights are loaded, so that a resumed run continues like an uninterrupted one.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(SoundTrainer.Config):
        pass

    stopped_early: bool

    def __init__(self, config: Config):
        checkpoint = self._checkpoint_to_load(config)
        self._saved = read_freeze(checkpoint) if checkpoint is not None else SavedFreeze()
        # from a checkpoint of another run only weights and static heads are taken, not the time that run took
        self._goes_on = checkpoint is not None and is_own(checkpoint, config.run)
        self._model_settings = model_settings(config.run)
        if checkpoint is not None:
            require_compatible(self._saved, config.run, checkpoint)
        super().__init__(config)
        self.stopped_early = False
        self._started = False
        self._budget: TimeBudget | None = None
        self._clock: RunClock | None = None
        self._elapsed = 0.0
        self._first_step = 0
        self.freezer = Freezer(
            self.model_parts[0],
            self.optimizers.optimizers[0],
            settings=config.run.saf,
            schedule=freeze_schedule(config.run),
            forward=self._forward,
            sequence_losses=self._sequence_losses,
            group=self._batch_group(),
            identity=json.loads(self._model_settings),
        )
        self.metrics_processor.num_heads = self.freezer.num_heads
        self.metrics_processor.tokens_per_step = (
            config.training.local_batch_size
            * self.gradient_accumulation_steps
            * self._batch_world()[0]
            * config.training.seq_len
        )
        self.metrics_processor.tokens_seen = lambda: self.dataloader.tokens_given
        world_size, rank = self._batch_world()
        held_out = held_out_sequences(config.dataloader, config.run, world_size=world_size, rank=rank)
        self.circuit_metrics = CircuitMetrics(
            self.model_parts[0],
            config.run.circuits.metrics_freq,
            None if held_out is None else lambda: self.freezer.measure_attention(held_out),
        )
        self.checkpointer.keep_steps = self._steps_to_keep
        if self._saved.plan is not None:
            self.freezer.restore(self._saved.plan)
            self._heads_changed()
        elif config.run.saf.enable:
            # building the loader raises for too little data, so that the run fails now and not at the freeze
            self._calibration_loader()
        for line in opening_lines(config.run, self.parallel_dims.world_size, self._batch_world()[0]):
            logger.info(line)
        self._log_backends()

    @staticmethod
    def _checkpoint_to_load(config: Config) -> Path | None:
        checkpoint = config.checkpoint
        if not checkpoint.enable:
            return None
        return find_checkpoint(
            Path(config.dump_folder) / checkpoint.folder,
            load_step=checkpoint.load_step,
            initial_load_path=checkpoint.initial_load_path,
        )

    def should_continue_training(self) -> bool:
        """Return whether to train another step; torchtitan calls this between two steps.

        ``self.step`` steps are done, saved and validated then. Heads become static here, and a requested stop is
        carried out here.
        """
        if not self._started:
            self._start()
        if self._stop.agreed():
            self.stopped_early = True
            self._save_checkpoint()
            return False
        if self._is_done():
            if self._run.freezes_at_end and (rate := self.freezer.rate_due(self.step)) is not None:
                self._freeze_at_end(rate)
            self._finish()
            return False
        rate = self.freezer.rate_due(self.step)
        if rate is not None:
            self._freeze(rate)
        return True

    def train_step(self, data_iterator: Iterator[TokenBatch]) -> None:
        if self._budget is not None:
            self.lr_schedulers.set_progress(self._budget.virtual_step(self._elapsed))
        last = self.step == self.config.training.steps and self._budget is None
        self.metrics_processor.validation_phase = "final" if last else "scheduled"
        measures = self.circuit_metrics.is_due(self.step)
        if measures:
            self.circuit_metrics.remember()
        self.metrics_processor.begin_step()
        self._losses.clear()
        try:
            super().train_step(data_iterator)
        except RuntimeError as error:
            if str(error).startswith(_TITAN_DIVERGED):
                raise self._diverged("the loss") from error
            raise
        self._last_update_seconds = self.metrics_processor.end_step()
        # the first step of a process is left out, because it may compile
        if self.step > self._first_step + 1:
            self._warn_of_long("a step", self._last_update_seconds)
        if measures:
            self._measure_circuits()

    def _measure_circuits(self) -> None:
        """Write how far the last step moved the circuits and where attention looks."""
        try:
            row = self.circuit_metrics.row(self.step)
        except ValueError as error:
            raise self._diverged("attention on held-out sequences") from error
        self.metrics_processor.log_circuits(row)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.freezer.plan is not None:
            state[PLAN_KEY] = self.freezer.plan.to_bytes()
        # before the start torchtitan calls this only to learn which keys to load, so offer those of the checkpoint
        freeze_state = self.freezer.state() if self._started else self._saved.state
        if freeze_state is not None:
            state[STATE_KEY] = freeze_state
        clock = self._clock.spent(self._last_update_seconds).to_json() if self._clock else self._saved.clock
        if clock is not None:
            state[CLOCK_KEY] = clock
        if self._started or self._saved.model is not None:
            state[MODEL_KEY] = self._model_settings
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        plan = self.freezer.plan
        if (plan.to_bytes() if plan is not None else None) != state_dict.get(PLAN_KEY):
            raise ValueError("the plan in the checkpoint is not the one the model was built with; it changed on disk")

    def _start(self) -> None:
        """Begin training: called once, after torchtitan has loaded a checkpoint or found none."""
        # replace the learning rates and decays of the checkpoint, which the optimizer has loaded, by the config's
        self.lr_schedulers.apply()
        # step 0 means that only weights were taken from another run, so the state of its schedule does not apply
        if self._saved.state and self.step:
            self.freezer.load_state(self._saved.state)
        if not self._goes_on:
            self.metrics_processor.start_anew()
        row_type = ResumeRow if self.step else StartRow
        self.metrics_processor.write(row_type(step=self.step, world_size=self.parallel_dims.world_size))
        if dist.get_rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / CONFIG_FILE).write_text(to_toml(self._run), encoding="utf-8")
        if self.freezer.plan is not None:
            logger.info(f"Resumed with a plan made at step {self.freezer.plan.step}: {self.freezer.summary()}")
        self._first_step = self.step
        spent = SpentTime(self.step)
        if self._saved.clock is not None and self._goes_on:
            spent = SpentTime.from_json(self._saved.clock)
            self._last_update_seconds = spent.last_update
        self._clock = RunClock(spent)
        self.metrics_processor.elapsed = self._clock.elapsed
        if self._run.saf.matched_seconds:
            self._budget = TimeBudget(self._run.saf.matched_seconds, spent.first_step, self.config.training.steps)
        self._started = True

    def _is_done(self) -> bool:
        if self._budget is None:
            return not super().should_continue_training()
        assert self._clock is not None
        # every rank uses the time of the slowest one, so that all stop at the same step
        self._elapsed, update = self._stop.maximum(self._clock.elapsed(), self._last_update_seconds)
        return self._budget.is_spent(self._elapsed, update, self.step)

    def _finish(self) -> None:
        """End training: called once, when the last step is done."""
        assert self._clock is not None
        # saf.matched_seconds of a run of equal time is set to these seconds
        self.metrics_processor.write(FinishRow(step=self.step, seconds=self._clock.elapsed()))
        if self._budget is not None:
            logger.info(f"Time budget spent: {self._elapsed:.1f} s, {self.step} steps")
            if self._run.saf.enable and self.step < self._run.freeze_step:
                logger.warning(
                    f"saf.matched_seconds = {self._run.saf.matched_seconds:g} ended the run before the freeze at step "
                    f"{self._run.freeze_step}: every head is still live"
                )
            self._save_checkpoint()
        if self.config.validator.enable and self.metrics_processor.last_validated_step != self.step:
            self._validate("final")

    def _freeze(self, rate: float) -> None:
        """Save, validate, freeze, validate again and record; only the frozen heads are changed."""
        logger.info(f"Freezing {rate:.1%} of {self.freezer.num_heads} heads after step {self.step}")
        # this checkpoint keeps the query and key rows that the freeze will set to zero
        self._save_checkpoint()
        self.optimizers.zero_grad()
        with self._collective_timeout(self._run.saf.timeout_seconds):
            self._validate("before_freeze")
            if not math.isfinite(self.metrics_processor.last_validation_loss):
                raise self._diverged("the validation loss")
            data = read_calibration_data(self._calibration_loader(), self._run, world_size=self._batch_world()[0])
            result = self.freezer.freeze(self.step, rate, data)
            self._heads_changed()
            self._log_backends()
            self._validate("after_freeze")
        self._record(result)

    def _freeze_at_end(self, rate: float) -> None:
        """Freeze after the last step, and replace the run's last checkpoint by one with the static heads."""
        num_before = self.freezer.num_static_heads
        self._freeze(rate)
        if not self.config.checkpoint.enable:
            return
        beside = f"step-{self.step}-{f'static-{num_before}' if num_before else 'live'}"
        self.checkpointer.save_instead(self.step, beside)
        logger.info(
            f"The checkpoint of step {self.step} has the static heads; the one before the freeze is kept as {beside}"
        )

    def _log_backends(self) -> None:
        for line in backend_lines(self.freezer.attentions):
            logger.info(line)

    def _calibration_loader(self) -> CursorLoader:
        world_size, rank = self._batch_world()
        return calibration_loader(self.config.dataloader, self._run, world_size=world_size, rank=rank)

    def _heads_changed(self) -> None:
        """Update the metrics, and drop the CUDA graphs that were captured with other static heads."""
        _, self.metrics_processor.num_flops_per_token = self.model_config.get_nparams_and_flops(
            self.model_parts[0], self.config.training.seq_len
        )
        self.metrics_processor.num_static_heads = self.freezer.num_static_heads
        if not self.config.training.disable_cuda_graphs:
            # otherwise a captured graph would silently go on with the old heads
            cudagraph_teardown()
            self.fwd_bwd_fn = wrap_with_cuda_graph(self._forward_backward_body)

    def _steps_to_keep(self) -> frozenset[int]:
        """Return the steps whose checkpoints are never removed; those of freezes are read from the plan."""
        plan = self.freezer.plan if self._run.saf.keep_checkpoint else None
        freezes = (head.step for head in plan.heads) if plan is not None else ()
        return frozenset(self._run.checkpoint.keep_steps).union(freezes)

    def _record(self, result: FreezeResult) -> None:
        self._warn_of_long("a freeze", sum(result.seconds.values()))
        self.metrics_processor.log_freeze(record_freeze(result, self.freezer.summary(), self._folder), result)
