"""Measure the report of a large run: bytes of the page, and the time to write it.

    OMP_NUM_THREADS=1 python scripts/bench/report.py [--out FOLDER] [--layers 32] [--heads 16] [--length 8192]

The records are synthetic: every head has a random pattern, half of the heads are frozen by just this pattern, and the
statistics are those of the pattern, taken from 32 of its rows. The page has what a run of such a model leaves behind:
the map of all heads with their panels, figures, tables and DTAP maps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from saf_titan.config import load_config, to_toml
from saf_titan.heads.names import Head
from saf_titan.report.row_lines import write_row
from saf_titan.report.rows import (
    METRICS_FILE,
    FinishRow,
    FreezeRow,
    RelevanceRow,
    Row,
    StartRow,
    TrainRow,
    ValidationRow,
)
from saf_titan.report.write import write_report
from saf_titan.saf.calibrate.calibration import Calibration, CalibrationRecord
from saf_titan.saf.fit.pattern import CompactPattern
from saf_titan.saf.plan.plan import StaticHead, StaticPlan

STEPS = 2000
FREEZE = 1000
BLOCKS = 64
"""Blocks of an axis of the pooled maps."""
SAMPLED_ROWS = 32


def records(num_layers: int, num_heads: int, length: int) -> tuple[Calibration, StaticPlan]:
    """Return the statistics of random patterns, and a plan in which half of the heads have them."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_layers, num_heads)
    columns_LHT, diagonals_LHT = (torch.zeros(*shape, length, dtype=torch.float64) for _ in range(2))
    maps_LHPP = torch.zeros(*shape, BLOCKS, BLOCKS, dtype=torch.float64)
    entropy_LH = torch.zeros(shape, dtype=torch.float64)
    patterns: dict[Head, CompactPattern] = {}
    for layer in range(num_layers):
        for head in range(num_heads):
            pattern = patterns[layer, head] = _pattern(length, generator)
            sums = _sums(pattern)
            columns_LHT[layer, head], diagonals_LHT[layer, head], maps_LHPP[layer, head], entropy_LH[layer, head] = sums
    variance_LH = 10 ** (4 * torch.rand(shape, generator=generator, dtype=torch.float64) - 7)
    record = CalibrationRecord(16, length, tuple(range(16)), 1337, "synthetic")
    calibration = Calibration(
        variance_LH=variance_LH,
        kl_LH=1e3 * variance_LH,
        neg_entropy_LH=-entropy_LH * length,
        column_mass_LHT=columns_LHT,
        diagonal_mass_LHT=diagonals_LHT,
        entropy_LH=entropy_LH,
        mean_map_LHPP=maps_LHPP,
        live_LH=torch.ones(shape, dtype=torch.bool),
        record=record,
    )
    ranking = [divmod(place, num_heads) for place in variance_LH.flatten().argsort().tolist()]
    chosen = sorted((slot, rank) for rank, slot in enumerate(ranking[: len(ranking) // 2]))
    heads = tuple(
        StaticHead(*slot, patterns[slot], variance_LH[slot].item(), 0.05, rank, FREEZE) for slot, rank in chosen
    )
    return calibration, StaticPlan(heads, (), FREEZE, "variance", "mean", 0.5, length, record)


def _pattern(length: int, generator: torch.Generator) -> CompactPattern:
    """Return a pattern that decays over a random distance, with noise and a sink of random strength."""
    width, sink = 2 ** (13 * torch.rand((), generator=generator)), 4 * torch.rand((), generator=generator)
    alpha_T = 0.3 * torch.randn(length, generator=generator)
    alpha_T[0] += sink
    rho_T = 0.2 * torch.randn(length, generator=generator) - torch.arange(length) / width
    return CompactPattern(alpha_T, rho_T)


def _sums(pattern: CompactPattern) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return column masses (T,), diagonal masses (T,), the pooled map (P, P) and the entropy, from some of the rows."""
    alpha_T, rho_T = pattern.vectors
    T = len(alpha_T)
    columns_T, diagonals_T = torch.zeros(T), torch.zeros(T)
    map_PP = torch.eye(BLOCKS, dtype=torch.float64) * 1e-9
    entropy = 0.0
    spacing = T // SAMPLED_ROWS
    for i in range(spacing - 1, T, spacing):
        row_J = (alpha_T[: i + 1] + rho_T[: i + 1].flip(0)).softmax(0)
        columns_T[: i + 1] += spacing * row_J
        diagonals_T[: i + 1] += spacing * row_J.flip(0)
        pooled_P = torch.nn.functional.pad(row_J, (0, T - i - 1)).view(BLOCKS, -1).sum(1)
        # a sampled row stands for all blocks of rows up to it
        first, last = (i + 1 - spacing) * BLOCKS // T, i * BLOCKS // T
        map_PP[first : last + 1] += pooled_P.double()
        entropy -= (torch.special.xlogy(row_J, row_J).sum() / torch.tensor(i + 1.0).log()).item() / SAMPLED_ROWS
    map_PP = map_PP.tril()
    return columns_T.double(), diagonals_T.double(), map_PP / map_PP.sum(1, keepdim=True), entropy


def log_rows(num_layers: int, num_heads: int) -> list[Row]:
    """Return the rows of a run of `STEPS` steps with one freeze."""
    heads = num_layers * num_heads // 2
    mass = tuple((0.5,) * num_heads for _ in range(num_layers))
    cells = tuple(tuple(float(10 * (cell % 11 == 0)) for cell in range(100)) for _ in range(num_layers))
    rows: list[Row] = [StartRow(step=0, world_size=8)]
    for step in range(10, STEPS + 1, 10):
        is_frozen = step > FREEZE
        rows.append(
            TrainRow(
                step=step,
                loss=2.5 + 8 / (1 + 0.01 * step) + 0.1 * (step * 7919 % 13) / 13,
                tokens_per_second=2e5,
                step_seconds=0.8 if is_frozen else 1.0,
                tokens=524_288.0 * step,
                static_heads=heads if is_frozen else 0,
            )
        )
        if step == FREEZE:
            for phase in ("before_freeze", "after_freeze"):
                rows.append(ValidationRow(step=step, loss=3.2, phase=phase))
                rows.append(
                    RelevanceRow(
                        step=step, phase=phase, length=64, questions=100, mass=mass, confidence=mass, dtap=cells
                    )
                )
            rows.append(
                FreezeRow(
                    step=step, heads=heads, folder=f"saf/step-{step:06}", seconds={"calibrate": 60.0, "fit": 30.0}
                )
            )
    return [*rows, ValidationRow(step=STEPS, loss=2.9, phase="final"), FinishRow(step=STEPS, seconds=1800.0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep the folder of the run, with report.html in it")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=8192, help=f"a multiple of {BLOCKS}")
    args = parser.parse_args()
    if args.layers < 1 or args.heads < 1:
        parser.error("--layers and --heads must be at least 1")
    if args.length < BLOCKS or args.length % BLOCKS:
        parser.error(f"--length {args.length} must be a multiple of {BLOCKS}, the blocks of an axis of the maps")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or Path(temporary) / "large"
        calibration, plan = records(args.layers, args.heads, args.length)
        target = folder / f"saf/step-{FREEZE:06}"
        target.mkdir(parents=True, exist_ok=True)
        plan.save(target / "plan.safetensors")
        calibration.save(target / "stats.safetensors")
        config = load_config(None, [f"--training.steps={STEPS}", "--saf.enable=true", "--saf.rate=0.5"])
        (folder / "config.toml").write_text(to_toml(config))
        (folder / METRICS_FILE).write_text("".join(map(write_row, log_rows(args.layers, args.heads))))
        start = time.process_time()
        page = write_report(folder)
        print(
            f"{args.layers} layers x {args.heads} heads, T = {args.length}, {len(plan.heads)} static: "
            f"{page.stat().st_size / 1e6:.2f} MB, written in {time.process_time() - start:.0f} s of processor time"
        )


if __name__ == "__main__":
    main()
