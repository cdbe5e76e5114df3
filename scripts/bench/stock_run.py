"""Train torchtitan's llama3 debug flavor with the stock Trainer or with ours: same config, data and seed.

    torchrun --nproc_per_node 2 scripts/bench/stock_run.py stock|ours DATA OUT.json [STEPS [--section.key=value ...]]

The first rank writes every training loss, to the last bit, and the seconds and the processor seconds of every step.
Freezing is off and the QK ratio is 1. DATA is a folder of shards with a vocabulary of at most 2048. With
--model.fuse_qkv=false, `ours` has our attention, and `stock` has torchtitan's with separate projections.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.models.common.attention import QKVLinear
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from saf_titan.config import RunConfig, load_config
from saf_titan.models.init import draw_whole_tensors
from saf_titan.models.titan import titan_spec
from saf_titan.run.build import trainer_config
from saf_titan.run.leave import leave

OVERRIDES = {
    "model.family": "llama3",
    "model.flavor": "debugmodel",
    "model.fuse_qkv": "true",
    "training.seq_len": "128",
    "training.local_batch_size": "4",
    "training.mixed_precision_param": "float32",
    "lr_scheduler.warmup_steps": "2",
    "checkpoint.enable": "false",
    "metrics.log_freq": "1",
    "report.enable": "false",
}


def stock_spec(run: RunConfig) -> ModelSpec:
    """Return the stock model of the same run, with separate wq, wk and wv if ours has them."""
    model, shape = run.model, run.shape
    spec = titan_spec(model.family, model.flavor, shape, fuse_qkv=True, attention_backend="auto")
    if model.fuse_qkv:
        return spec
    ours = titan_spec(model.family, model.flavor, shape, fuse_qkv=False, attention_backend="auto")
    # on a CPU torchtitan's own initialisers give every rank the same part of a matrix
    draw_whole_tensors(spec.model)
    for stock_layer, our_layer in zip(spec.model.layers, ours.model.layers, strict=True):
        qkv = our_layer.attention.qkv_linear
        stock_layer.attention.qkv_linear = QKVLinear.Config(head_dim=qkv.head_dim, wq=qkv.wq, wkv=qkv.wk)
    return spec


def stock_config(ours: Any) -> Trainer.Config:
    """Return the stock Trainer's config for the same run; one parameter group exempts vectors from weight decay."""
    kwargs = ours.optimizer.hyper_parameters
    shared = {
        field.name: getattr(ours, field.name)
        for field in dataclasses.fields(Trainer.Config)
        if field.name not in ("model_spec", "optimizer", "lr_scheduler", "metrics")
    }
    schedule = {
        field.name: getattr(ours.lr_scheduler, field.name) for field in dataclasses.fields(LRSchedulersContainer.Config)
    }
    return Trainer.Config(
        **shared,
        model_spec=stock_spec(ours.run),
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


def run(kind: str, data: Path, out: Path, steps: int, overrides: list[str]) -> None:
    """Train for ``steps`` and write {"losses": [hex], "seconds": [float], "cpu_seconds": [float]} to ``out``."""
    compat.ensure_launcher_environment()
    init_logger()
    words = [f"--{key}={value}" for key, value in OVERRIDES.items()]
    words += [f"--data.path={data}", f"--training.steps={steps}", f"--dump_folder={out.with_suffix('')}", *overrides]
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
    if len(sys.argv) < 4 or sys.argv[1] not in ("stock", "ours"):
        sys.exit(__doc__)
    run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int([*sys.argv, "10"][4]), sys.argv[5:])
