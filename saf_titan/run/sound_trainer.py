"""torchtitan's Trainer with additions that a freeze between two steps needs.

They are a stop that all ranks agree on, saves of finite states only, and forwards, validations and time limits between
two steps.
"""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchtitan.distributed.utils import set_pg_timeouts
from torchtitan.tools.logging import logger
from torchtitan.trainer import Trainer

from saf_titan.circuits.optimizer import CircuitOptimizers, CircuitSchedules
from saf_titan.config import RunConfig
from saf_titan.data.cursor import CursorLoader
from saf_titan.fields.step_folders import is_complete
from saf_titan.run.calibration_data import TokenBatch
from saf_titan.run.checkpoints import SoundCheckpoints
from saf_titan.run.divergence import Diverged, diverged, first_not_finite
from saf_titan.run.measurement import sequence_losses
from saf_titan.run.metrics import RunMetrics
from saf_titan.run.stop import StopRequest, too_long_to_stop


class SoundTrainer(Trainer):
    """A trainer that can stop, save and measure between two steps; static heads are added in `SAFTrainer`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        run: RunConfig = field(default_factory=RunConfig)
        """The configuration of the run, from which this one was built."""

    optimizers: CircuitOptimizers
    lr_schedulers: CircuitSchedules
    checkpointer: SoundCheckpoints
    dataloader: CursorLoader
    metrics_processor: RunMetrics
    ntokens_seen: int

    def __init__(self, config: Config):
        self._run = config.run
        self._folder = Path(config.dump_folder)
        super().__init__(config)
        self._stop = StopRequest()
        self._last_update_seconds = 0.0
        self._losses: list[Tensor] = []
        self._warned: set[str] = set()
        self.checkpointer.require_sound = self._require_sound

    def train(self) -> None:
        """Train to the last step, or to the end of the step during which a stop was requested."""
        with self._stop:
            super().train()

    def forward_backward_step(self, **kwargs: Any) -> Tensor:
        loss: Tensor = super().forward_backward_step(**kwargs)
        # cloned, because a captured CUDA graph overwrites its output at the next replay
        self._losses.append(loss.detach().clone())
        return loss

    def _require_sound(self) -> None:
        """Raise on every rank, before anything is saved, if a loss, weight or moment of any rank is not finite."""
        broken = None
        if self._losses and not torch.stack(self._losses).isfinite().all():
            broken = "the loss"
        broken = broken or first_not_finite(self.model_parts[0], self.optimizers.optimizers[0])
        (any_broken,) = self._stop.maximum(float(broken is not None))
        if any_broken:
            raise self._diverged(broken or "the state of another rank")

    def _diverged(self, what: str) -> Diverged:
        return diverged(what, self.step, self._folder / self.config.checkpoint.folder)

    def _warn_of_long(self, what: str, seconds: float) -> None:
        """Warn, once for each kind of work, that a stop during it would be cut short."""
        line = too_long_to_stop(what, seconds, os.environ) if what not in self._warned else None
        if line is not None:
            self._warned.add(what)
            logger.warning(line)

    def _forward(self, batch: TokenBatch) -> Tensor:
        """Run one forward and return the logits, without a change to the counters of training."""
        input_dict, labels = batch
        on_device = {name: tensor.to(self.device) for name, tensor in input_dict.items()}
        num_tokens_seen: int = self.ntokens_seen
        inputs, _, extra_kwargs = self.post_dataloading_process(on_device, labels.to(self.device))
        self.ntokens_seen = num_tokens_seen
        with self.train_context():
            return self.model_parts[0](inputs, **extra_kwargs)

    def _sequence_losses(self, batch: TokenBatch) -> Tensor:
        return sequence_losses(self._forward(batch), batch[1].to(self.device))

    def _validate(self, phase: str) -> None:
        if self.config.validator.enable:
            self.metrics_processor.validation_phase = phase
            self.validator.validate(self.model_parts, self.step)

    def _save_checkpoint(self) -> None:
        """Save this step, unless torchtitan has just done so."""
        checkpoint = self.config.checkpoint
        if not checkpoint.enable or self.step == 0:
            return
        self.checkpointer.maybe_wait_for_saving()
        saved = self._folder / checkpoint.folder / f"step-{self.step}"
        # only rank 0 looks, because on a network file system ranks may see different files
        (is_saved,) = self._stop.maximum(float(dist.get_rank() == 0 and is_complete(saved)))
        if not is_saved:
            self.checkpointer.save(self.step, last_step=True)

    @contextmanager
    def _collective_timeout(self, seconds: int) -> Iterator[None]:
        """Set the timeout of collectives in the block: torchtitan's (100 s by default) is too short for a freeze."""
        set_pg_timeouts(timedelta(seconds=seconds), self.parallel_dims)
        yield
        comm = self.config.comm
        # until the first step of this process, which may compile, the longer timeout of the start applies
        in_force = comm.train_timeout_seconds if self._last_update_seconds else comm.init_timeout_seconds
        set_pg_timeouts(timedelta(seconds=in_force), self.parallel_dims)

    def _batch_world(self) -> tuple[int, int]:
        """Return the number of ranks that read different data, and this rank's number among them."""
        if not self.parallel_dims.dp_enabled:
            return 1, 0
        mesh = self.parallel_dims.get_mesh("batch")
        return mesh.size(), mesh.get_local_rank()

    def _batch_group(self) -> dist.ProcessGroup | None:
        return self.parallel_dims.get_mesh("batch").get_group() if self.parallel_dims.dp_enabled else None
