"""Folders such as the trainer leaves them, from small synthetic statistics."""

import json
from pathlib import Path
from typing import Any

import torch

from saf_titan.config import load_config, to_toml
from saf_titan.ops.attention_stats import attention_stats
from saf_titan.saf.calibrate.calibration import Calibration, CalibrationRecord
from saf_titan.saf.plan.plan import StaticPlan
from tests.saf.plans import plan_of

Row = dict[str, Any]


def calibration(*, num_layers: int = 2, num_heads: int = 4, seq_len: int = 40, num_sequences: int = 4) -> Calibration:
    """Statistics of heads that look back by various distances and depend on their input to various degrees."""
    generator = torch.Generator().manual_seed(0)
    B, T, H, D = num_sequences, seq_len, num_heads, 16
    stats = []
    for layer in range(num_layers):
        angle_HTF = (torch.arange(T) / T * torch.rand(H, 1, 1, generator=generator) * 20)[..., None] * torch.ones(6)
        angle_HTF = angle_HTF[:, 0] * torch.rand(6, generator=generator)
        position_HTD = torch.cat([angle_HTF.cos(), angle_HTF.sin(), torch.zeros(H, T, D - 12)], -1)
        query_HTD = 4 * position_HTD
        query_HTD[..., 12] = 1.5
        key_HTD = position_HTD.clone()
        key_HTD[:, 0, 12] = 4 * torch.rand(H, generator=generator)
        content_H = (0.02 * 3.0 ** torch.arange(H))[torch.randperm(H, generator=generator)] * (1 + layer)
        noise_BHTD = content_H[:, None, None] * torch.randn(B, H, T, D, generator=generator)
        q_BTHD = (query_HTD + noise_BHTD).transpose(1, 2)
        k_BTHD = (key_HTD + 0.5 * noise_BHTD.flip(0)).transpose(1, 2)
        stats.append(attention_stats(q_BTHD, k_BTHD, scale=1.0))

    def stack(name: str) -> torch.Tensor:
        return torch.stack([getattr(layer, name) for layer in stats])

    return Calibration(
        variance_LH=stack("variance_H"),
        kl_LH=stack("kl_H"),
        neg_entropy_LH=stack("neg_entropy_H"),
        column_mass_LHT=stack("column_mass_HT"),
        diagonal_mass_LHT=stack("diagonal_mass_HT"),
        entropy_LH=stack("entropy_H"),
        mean_map_LHPP=stack("mean_map_HPP"),
        live_LH=torch.ones(num_layers, num_heads, dtype=torch.bool),
        record=CalibrationRecord(num_sequences, seq_len, tuple(range(num_sequences)), 1337, "data/toy"),
    )


def train_row(step: int, **fields: Any) -> Row:
    loss = 2.5 + 8 / (1 + 0.1 * step) + 0.2 * ((step * 7919) % 13 / 13 - 0.5)
    row = {
        "kind": "train",
        "step": step,
        "loss": loss,
        "grad_norm": 1.0,
        "tokens_per_second": 2048.0,
        "step_seconds": 0.5,
        "tokens": 1024 * step,
        "static_heads": 0,
        "lr/qk": 1e-3,
        "lr/ov": 1e-3,
        "lr/other": 1e-3,
    }
    row |= fields
    if row["step_seconds"]:
        row["tokens_per_second"] = 1024 / row["step_seconds"]
    return row


def validation_row(step: int, phase: str, loss: float | None = None) -> Row:
    loss = 2.6 + 8 / (1 + 0.1 * step) if loss is None else loss
    return {"kind": "validation", "step": step, "loss": loss, "phase": phase}


def freeze_row(step: int, heads: int) -> Row:
    seconds = {"calibrate": 1.5, "fit": 0.25, "install": 0.125}
    return {"kind": "freeze", "step": step, "heads": heads, "folder": f"saf/step-{step:06}", "seconds": seconds}


def undone_row(step: int, heads: int, losses: tuple[float, float] = (3.0, 3.25)) -> Row:
    row = freeze_row(step, heads)
    return {**row, "kind": "freeze_undone", "folder": "", "new_heads": 1, "held_out_losses": list(losses)}


def finish_row(step: int, seconds: float = 60.0) -> Row:
    return {"kind": "finish", "step": step, "seconds": seconds}


def relevance_row(step: int, phase: str, *, layers: int = 2, heads: int = 4, sharpness: float | None = None) -> Row:
    """Ten questions to each layer, whose mass and probability are `sharpness`, a tenth less in each layer below."""
    sharpness = step / 125 if sharpness is None else sharpness
    mass = [[max(sharpness - 0.1 * (layers - 1 - layer), 0.0)] * heads for layer in range(layers)]
    dtap = []
    for layer in range(layers):
        counts = [[0] * 10 for _ in range(10)]
        counts[int(10 * mass[layer][0])][int(10 * sharpness)] = 10
        dtap.append([count for row in counts for count in row])
    confidence = [[float(x >= 0.5) for x in of_layer] for of_layer in mass]
    row = {"kind": "relevance", "step": step, "phase": phase, "length": 64, "pairs": 0, "questions": 10}
    return row | {"mass": mass, "confidence": confidence, "dtap": dtap}


def session_row(kind: str, step: int, world_size: int = 2) -> Row:
    return {"kind": kind, "step": step, "world_size": world_size}


def plain_rows(steps: int = 120) -> list[Row]:
    """An ordinary run: a line every fifth step."""
    return [session_row("start", 0), *(train_row(step) for step in range(5, steps + 1, 5))]


def frozen_rows(plan: StaticPlan, steps: int = 120) -> list[Row]:
    """A run that freezes at half time and is a quarter faster after it."""
    half, heads = steps // 2, len(plan.heads)
    return [
        session_row("start", 0),
        validation_row(1, "scheduled"),
        *(train_row(step) for step in range(5, half + 1, 5)),
        validation_row(half, "scheduled"),
        validation_row(half, "before_freeze", 3.75),
        validation_row(half, "after_freeze", 3.8125),
        freeze_row(half, heads),
        *(train_row(step, step_seconds=0.4, static_heads=heads) for step in range(half + 5, steps + 1, 5)),
        finish_row(steps),
        validation_row(steps, "final", 3.25),
    ]


def write_run(folder: Path, rows: list[Row], *overrides: str) -> Path:
    """The folder of a run with the given log."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--model.flavor=debug", "--training.steps=120", "--lr_scheduler.warmup_steps=10", *overrides]
    (folder / "config.toml").write_text(to_toml(load_config(None, words)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_frozen_run(
    folder: Path, *, statistics: Calibration | None = None, rate: float = 0.5, max_fit_kl: float = 0.2
) -> Path:
    """The folder of a finished run with a freeze."""
    statistics = statistics or calibration()
    plan = plan_of(statistics, step=60, rate=rate, max_fit_kl=max_fit_kl, on_shortfall="warn")
    write_run(folder, frozen_rows(plan), "--saf.enable=true", f"--saf.rate={rate}")
    target = folder / "saf" / "step-000060"
    target.mkdir(parents=True)
    plan.save(target / "plan.safetensors")
    statistics.save(target / "stats.safetensors")
    return folder
