"""The results of interventions as tables of text, and as files."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saf_titan.analysis.interventions import EdgeWay, Harm, Study, areas
from saf_titan.analysis.tables import number, text_table

REFERENCE = "attention"
"""The measure that the others are compared with, sequence by sequence."""

_SETTING = ("metric", "seed", "way", "spares_first", "side", "fraction")
_VALUES = {"nll_rise": "nll_P", "kl": "kl_P", "flips": "flips_P"}
WAYS = {"value": "values set to zero", "edge": "edges cut before the softmax", "mean": "values set to their mean"}


class Line(NamedTuple):
    """One measure under one way of removal: areas over the shares of keys, by sequence, means over seeds."""

    metric: str
    top: tuple[Tensor, Tensor, Tensor]
    """Rise of the loss, KL and flips, each (P,), from the top."""
    bottom: tuple[Tensor, Tensor, Tensor] | None
    seed_deviation: float
    """Standard deviation over seeds of the mean rise; NaN for one seed."""


def ranking(study: Study, way: EdgeWay, spares_first: bool) -> list[Line]:
    """The measures, those that find the most harmful keys first (by the rise of the loss, area over the shares)."""
    by_metric: dict[str, dict[str, list[tuple[Tensor, ...]]]] = defaultdict(lambda: defaultdict(list))
    for (metric, _, its_way, spares, side), found in areas(study.harms):
        if (its_way, spares) == (way, spares_first):
            by_metric[metric][side].append(found)
    lines = []
    for metric, sides in by_metric.items():
        mean = {side: tuple(torch.stack(x).mean(0) for x in zip(*seeds, strict=True)) for side, seeds in sides.items()}
        rises = torch.stack([found[0].mean() for found in sides.get("top", [])])
        deviation = rises.std().item() if len(rises) > 1 else float("nan")
        lines.append(Line(metric, mean["top"], mean.get("bottom"), deviation))  # type: ignore[arg-type]
    return sorted(lines, key=lambda line: -line.top[0].mean().item())


def ranking_lines(study: Study, way: EdgeWay, spares_first: bool, *, is_terminal: bool = False) -> list[str]:
    """A table of the measures. +- is the standard deviation over sequences, of the difference to attention its error."""
    lines = ranking(study, way, spares_first)
    reference = next((line for line in lines if line.metric == REFERENCE), None)
    rows = []
    for line in lines:
        difference = "-"
        if reference is not None and line.metric != REFERENCE:
            values_P = line.top[0] - reference.top[0]
            difference = f"{values_P.mean():+.3f} +- {_deviation(values_P) / len(values_P) ** 0.5:.3f}"
        rows.append(
            [
                line.metric,
                f"{line.top[0].mean():+.3f} +- {_deviation(line.top[0]):.3f}",
                number(line.seed_deviation),
                difference,
                number(line.top[1].mean().item()),
                number(line.top[2].mean().item()),
                "-"
                if line.bottom is None
                else f"{line.bottom[0].mean():+.3f} +- {_deviation(line.bottom[0]):.3f}",
            ]
        )
    first = "the first position is kept" if spares_first else "the first position may go"
    columns = ("metric", "top: loss rises", "over seeds", "against attention", "KL", "flips", "bottom: loss rises")
    return [f"{WAYS[way]}, {first}", *text_table(columns, rows, bold_rows=(0,), is_terminal=is_terminal)]


def share_lines(study: Study, way: EdgeWay, spares_first: bool, *, is_terminal: bool = False) -> list[str]:
    """The rise of the loss from the top at every share of keys, mean over sequences and seeds."""
    cells: dict[str, dict[float, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for harm in study.harms:
        if (harm.way, harm.spares_first, harm.side) == (way, spares_first, "top"):
            cells[harm.metric][harm.fraction].append(harm.nll_P)
    fractions = study.settings.fractions
    rows = [
        [line.metric, *(number(torch.stack(cells[line.metric][f]).mean().item(), sign=True) for f in fractions)]
        for line in ranking(study, way, spares_first)
    ]
    return text_table(("top, share of keys", *(f"{f:.0%}" for f in fractions)), rows, is_terminal=is_terminal)


def _deviation(values_P: Tensor) -> float:
    return values_P.std().item() if len(values_P) > 1 else float("nan")


def write_results(study: Study, folder: Path, about: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write interventions.json, with everything by sequence, and interventions.csv, a line for each removal's means."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_plain(harm) for harm in study.harms]
    as_json, as_csv = folder / "interventions.json", folder / "interventions.csv"
    whole = {"about": dict(about), "whole_model_nll": study.nll_P.tolist(), "removals": rows}
    as_json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    with as_csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = [f"{name}_{what}" for name in _VALUES for what in ("mean", "deviation")]
        writer.writerow([*_SETTING, "sequences", *columns])
        for harm in study.harms:
            values = [getattr(harm, name) for name in _VALUES.values()]
            numbers = [f"{x:.6g}" for value_P in values for x in (value_P.mean().item(), _deviation(value_P))]
            writer.writerow([*(getattr(harm, name) for name in _SETTING), len(harm.nll_P), *numbers])
    return as_json, as_csv


def _plain(harm: Harm) -> dict[str, Any]:
    return {name: getattr(harm, name) for name in _SETTING} | {
        name: getattr(harm, attribute).tolist() for name, attribute in _VALUES.items()
    }


