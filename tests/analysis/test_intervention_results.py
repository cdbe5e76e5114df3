"""Rankings, tables and files of interventions, on numbers that are easy to check."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from saf_titan.analysis.intervention_results import ranking, ranking_lines, share_lines, write_results
from saf_titan.analysis.interventions import Harm, Settings, Study
from saf_titan.analysis.removed_edges import Side


def study(sides: tuple[Side, ...] = ("top", "bottom"), sequences: int = 3) -> Study:
    """Attention does 1, 2 and 3 nats of harm in three sequences at the share 0.1, norms half a nat more."""
    settings = Settings(
        metrics=("attention", "norm", "random"), ways=("value",), sides=sides, fractions=(0.1, 0.3), seeds=(0, 1)
    )
    base = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)[:sequences]
    harms = []
    for metric, seed, rise in (("attention", 0, 0.0), ("norm", 0, 0.5), ("random", 0, -0.9), ("random", 1, -0.7)):
        for way, spares, side, fraction in settings.removals:
            value = base + rise + (fraction == 0.3) - 4 * (side == "bottom") * (metric != "random")
            harms.append(Harm(metric, seed, way, spares, side, fraction, value, value / 10, value / 100))
    return Study(settings, base, harms)


def test_measures_that_do_more_harm_come_first() -> None:
    lines = ranking(study(), "value", True)
    assert [line.metric for line in lines] == ["norm", "attention", "random"]
    torch.testing.assert_close(lines[1].areas["top"][0], torch.tensor([1.5, 2.5, 3.5], dtype=torch.float64))
    # means over seeds first
    assert lines[2].areas["top"][0].mean().item() == pytest.approx(2.5 - 0.8)
    assert lines[2].seed_deviation["top"] == pytest.approx(0.02**0.5)
    assert lines[0].seed_deviation["top"] != lines[0].seed_deviation["top"]
    # without a top, those whose bottom does least
    lines = ranking(study(("bottom",)), "value", True)
    assert [line.metric for line in lines] == ["attention", "norm", "random"]


def test_tables() -> None:
    lines = ranking_lines(study(), "value", False)
    assert lines[0] == "values set to zero, the first position may go"
    assert lines[1].split("  ")[0] == "top keys by"
    assert lines[2].split() == ["norm", "+3.000", "+-", "1.000", "-", "+0.500", "+-", "0.000", "0.300", "0.030"]
    assert lines[3].split() == ["attention", "+2.500", "+-", "1.000", "-", "-", "0.250", "0.025"]
    assert lines[5].split("  ")[0] == "bottom keys by"
    shares = share_lines(study(), "value", True)
    assert shares[0].split("  ")[1:] == ["top 10%", "top 30%", "bottom 10%", "bottom 30%"]
    assert shares[2].split() == ["attention", "+2.000", "+3.000", "-2.000", "-1.000"]


def test_one_sequence_has_no_deviation(tmp_path: Path) -> None:
    lines = ranking_lines(one := study(sequences=1), "value", False)
    assert lines[2].split() == ["norm", "+2.000", "+-", "-", "-", "+0.500", "+-", "-", "0.200", "0.020"]
    _, as_csv = write_results(one, tmp_path, {})
    with as_csv.open() as file:
        first = next(csv.DictReader(file))
    assert (first["nll_rise_mean"], first["nll_rise_deviation"], first["sequences"]) == ("1", "", "1")


def test_files(tmp_path: Path) -> None:
    as_json, as_csv = write_results(study(), tmp_path / "out", {"model": "tiny"})
    read = json.loads(as_json.read_text())
    assert read["about"] == {"model": "tiny"}
    assert read["whole_model_nll"] == [1, 2, 3]
    first = read["removals"][0]
    assert (first["metric"], first["side"], first["fraction"], first["nll_rise"]) == (
        "attention",
        "top",
        0.1,
        [1, 2, 3],
    )
    with as_csv.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(read["removals"]) == 4 * 2 * 2 * 2
    assert (rows[0]["nll_rise_mean"], rows[0]["nll_rise_deviation"], rows[0]["sequences"]) == ("2", "1", "3")
