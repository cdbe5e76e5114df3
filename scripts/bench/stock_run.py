"""torchtitan's llama3 debug flavour on token shards, by the stock Trainer or by ours: same config, data and seed.

    torchrun --nproc_per_node 2 scripts/bench/stock_run.py stock|ours DATA OUT.json [STEPS]

Writes the bits of every training loss, the seconds and the processor time of every step (first rank). Freezing is off,
the QK ratio 1. DATA is a folder of shards with a vocabulary of at most 2048.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

# first: it must precede every other torchtitan module
from saf_titan import compat  # isort: skip

import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from saf_titan.build import trainer_config
from saf_titan.config import load_config
from saf_titan.train import leave

OVERRIDES = {
    "model.family": "llama3",
    "model.flavor": "debugmodel",
    "training.seq_len": "128",
    "training.local_batch_size": "4",
    "training.mixed_precision_param": "float32",
    "lr_scheduler.warmup_steps": "2",
    "checkpoint.enable": "false",
    "metrics.log_freq": "1",
    "report.enable": "false",
}


def stock_config(ours: Any) -> Trainer.Config:
    """The stock Trainer's config for the same run; two regex groups keep vectors from decaying."""
    kwargs = ours.optimizer.hyper_parameters
    shared = {
        field.name: getattr(ours, field.name)
        for field in dataclasses.fields(Trainer.Config)
        if field.name not in ("optimizer", "lr_scheduler", "metrics")
    }
    schedule = {
        field.name: getattr(ours.lr_scheduler, field.name) for field in dataclasses.fields(LRSchedulersContainer.Config)
    }
    return Trainer.Config(
        **shared,
        optimizer=OptimizersContainer.Config(
            implementation=ours.optimizer.implementation,
            param_groups=[
                ParamGroupConfig(
                    pattern="norm", optimizer_name="AdamW", optimizer_kwargs={**kwargs, "weight_decay": 0.0}
                ),
                ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=kwargs),
            ],
        ),
        lr_scheduler=LRSchedulersContainer.Config(**schedule),
        metrics=MetricsProcessor.Config(log_freq=1, disable_color_printing=True),
    )


def run(kind: str, data: Path, out: Path, steps: int) -> None:
    """Train ``steps`` steps and write {"losses": [hex], "seconds": [float], "cpu_seconds": [float]} to ``out``."""
    compat.ensure_launcher_environment()
    init_logger()
    words = [f"--{key}={value}" for key, value in OVERRIDES.items()]
    words += [f"--data.path={data}", f"--training.steps={steps}", f"--dump_folder={out.with_suffix('')}"]
    config = trainer_config(load_config(None, words))
    trainer = (config if kind == "ours" else stock_config(config)).build()

    losses: list[str] = []
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    log, train_step = trainer.metrics_processor.log, trainer.train_step

    def log_and_keep(step: int, global_avg_loss: float, *args: Any, **kwargs: Any) -> None:
        losses.append(float(global_avg_loss).hex())
        log(step, global_avg_loss, *args, **kwargs)

    def timed_step(data_iterator: Any) -> None:
        start, cpu_start = time.perf_counter(), time.process_time()
        train_step(data_iterator)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)

    trainer.metrics_processor.log, trainer.train_step = log_and_keep, timed_step
    trainer.train()
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"losses": losses, "seconds": seconds, "cpu_seconds": cpu_seconds}))
    trainer.close()
    leave(0)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in ("stock", "ours"):
        sys.exit(__doc__)
    run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) == 5 else 10)
