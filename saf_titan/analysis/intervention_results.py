"""The results of interventions as tables of text, and as files."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saf_titan.analysis.interventions import Harm, Study, areas
from saf_titan.analysis.removal import EdgeWay
from saf_titan.analysis.removed_edges import Side
from saf_titan.analysis.tables import number, text_table

REFERENCE = "attention"
"""The measure that the others are compared with, sequence by sequence."""

FILES = ("interventions.json", "interventions.csv")
STORE = "interventions.jsonl"
"""The file that keeps the results of each sequence while the others are measured."""

_SETTING = ("metric", "seed", "way", "spares_first", "side", "fraction")
_VALUES = {"nll_rise": "nll_P", "kl": "kl_P", "flips": "flips_P"}
WAYS = {"value": "values set to zero", "edge": "edges cut before the softmax", "mean": "values set to their mean"}


_Area = tuple[Tensor, Tensor, Tensor]
"""Rise of the loss, KL and flips, each (P,): means over the shares of keys and over seeds."""


class Line(NamedTuple):
    """One measure under one way of removal."""

    metric: str
    areas: Mapping[Side, _Area]
    """From the top and from the bottom, those that were measured."""
    seed_deviation: Mapping[Side, float]
    """Standard deviation over seeds of the mean rise; NaN for one seed."""


def ranking(study: Study, way: EdgeWay, spares_first: bool) -> list[Line]:
    """The measures, the best first: the one whose top keys do most harm, or, without a top, whose bottom does least."""
    found: dict[str, dict[Side, list[_Area]]] = defaultdict(lambda: defaultdict(list))
    for (metric, _, its_way, spares, side), area in areas(study.harms):
        if (its_way, spares) == (way, spares_first):
            found[metric][side].append(area)
    lines = []
    for metric, sides in found.items():
        means, deviations = {}, {}
        for side, seeds in sides.items():
            rise, kl, flips = (torch.stack(values).mean(0) for values in zip(*seeds, strict=True))
            means[side] = (rise, kl, flips)
            deviations[side] = _deviation(torch.stack([area[0].mean() for area in seeds]))
        lines.append(Line(metric, means, deviations))
    first: Side = "top" if "top" in study.settings.sides else "bottom"
    return sorted(lines, key=lambda line: line.areas[first][0].mean().item(), reverse=first == "top")


def ranking_lines(study: Study, way: EdgeWay, spares_first: bool, *, is_terminal: bool = False) -> list[str]:
    """Tables of the measures, one for each side.

    The first +- is the standard deviation over sequences, that of the difference to attention its standard error.
    """
    lines = ranking(study, way, spares_first)
    found = [f"{WAYS[way]}, {'the first position is kept' if spares_first else 'the first position may go'}"]
    for side in study.settings.sides:
        reference = next((line.areas[side][0] for line in lines if line.metric == REFERENCE), None)
        rows = []
        for line in lines:
            rise_P, kl_P, flips_P = line.areas[side]
            difference = "-"
            if reference is not None and line.metric != REFERENCE:
                values_P = rise_P - reference
                error = number(_deviation(values_P) / len(values_P) ** 0.5)
                difference = f"{number(values_P.mean().item(), sign=True)} +- {error}"
            rows.append(
                [
                    line.metric,
                    f"{number(rise_P.mean().item(), sign=True)} +- {number(_deviation(rise_P))}",
                    number(line.seed_deviation[side]),
                    difference,
                    number(kl_P.mean().item()),
                    number(flips_P.mean().item()),
                ]
            )
        columns = (f"{side} keys by", "loss rises by", "over seeds", "more than attention", "KL", "flips")
        found += text_table(columns, rows, is_terminal=is_terminal)
    return found


def share_lines(study: Study, way: EdgeWay, spares_first: bool, *, is_terminal: bool = False) -> list[str]:
    """The rise of the loss at every share of keys, mean over sequences and seeds."""
    cells: dict[tuple[str, Side, float], list[Tensor]] = defaultdict(list)
    for harm in study.harms:
        if (harm.way, harm.spares_first) == (way, spares_first):
            cells[harm.metric, harm.side, harm.fraction].append(harm.nll_P)
    columns = list(product(study.settings.sides, study.settings.fractions))
    rows = [
        [line.metric, *(number(torch.stack(cells[line.metric, *at]).mean().item(), sign=True) for at in columns)]
        for line in ranking(study, way, spares_first)
    ]
    names = [f"{side} {100 * fraction:g}%" for side, fraction in columns]
    return text_table(("loss rises by", *names), rows, is_terminal=is_terminal)


def _deviation(values_P: Tensor) -> float:
    """The standard deviation; NaN for a single value, which tables show as "-" and the csv leaves empty."""
    return values_P.std().item() if len(values_P) > 1 else float("nan")


def write_results(study: Study, folder: Path, about: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write interventions.json, with everything by sequence, and interventions.csv, a line for each removal's means."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_plain(harm) for harm in study.harms]
    as_json, as_csv = (folder / name for name in FILES)
    whole = {"about": dict(about), "whole_model_nll": study.nll_P.tolist(), "removals": rows}
    as_json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    with as_csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = [f"{name}_{what}" for name in _VALUES for what in ("mean", "deviation")]
        writer.writerow([*_SETTING, "sequences", *columns])
        for harm in study.harms:
            values = [getattr(harm, name) for name in _VALUES.values()]
            numbers = [
                "" if math.isnan(x) else f"{x:.6g}"
                for value_P in values
                for x in (value_P.mean().item(), _deviation(value_P))
            ]
            writer.writerow([*(getattr(harm, name) for name in _SETTING), len(harm.nll_P), *numbers])
    return as_json, as_csv


def _plain(harm: Harm) -> dict[str, Any]:
    return {name: getattr(harm, name) for name in _SETTING} | {
        name: getattr(harm, attribute).tolist() for name, attribute in _VALUES.items()
    }
