"""Plans as text."""

import dataclasses

import pytest
import torch

from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.show.plan_text import describe_pattern, plan_diff, plan_map, plan_table
from tests.saf.synthetic import calibration

DATA = calibration([[0.1, 0.4, 0.8], [0.2, 0.3, 0.9]], unfit=((0, 0),))
PLAN = make_plan(DATA, step=7, rate=1 / 3)


def test_table_names_every_head_and_every_skipped_one() -> None:
    text = plan_table(PLAN)
    for part in ("2 static heads at step 7", "L1H0", "L1H1", "skipped\nL0H0", "nat > 0.2", PLAN.digest):
        assert part in text


def test_map() -> None:
    rows = plan_map(PLAN, DATA).splitlines()
    assert [row.split()[1:] for row in rows[1:]] == [["x", ".", "."], ["#", "#", "."]]
    # without the calibration the grid ends where the plan's heads do
    assert [row.split()[1:] for row in plan_map(PLAN).splitlines()[1:]] == [["x", "."], ["#", "#"]]


def test_diff() -> None:
    assert plan_diff(PLAN, make_plan(DATA, step=7, rate=1 / 3)) == []
    other = plan_diff(PLAN, make_plan(DATA, step=8, rate=1 / 3, selector="kl"))
    assert other[:2] == ["step: 7 -> 8", "selector: variance -> kl"]
    assert "only in the first: L1H0" in other
    assert "only in the second: L0H1" in other or "only in the second: L0H2" in other
    moved = dataclasses.replace(PLAN.heads[0], alpha_T=PLAN.heads[0].alpha_T + 0.25)
    changed = dataclasses.replace(PLAN, heads=(moved, *PLAN.heads[1:]))
    assert plan_diff(PLAN, changed) == ["L1H0: pattern differs by up to 2.50e-01 nat"]
    assert plan_diff(PLAN, dataclasses.replace(PLAN, skipped=())) == ["the skipped heads differ"]


def test_shape_of_a_pattern() -> None:
    T = 300
    alpha, rho = torch.zeros(T), -torch.arange(T) / 10
    alpha[[0, 5]] = 6
    shape = describe_pattern(alpha, rho)
    assert shape["heavy_columns"] == 2
    assert shape["alpha_range"] == 6
    assert shape["rho_range"] == pytest.approx(29.9, rel=1e-5)
    assert shape["roughness"] < 1e-5
    rough = rho + 0.1 * torch.randn(T, generator=torch.Generator().manual_seed(0))
    # independent noise of size s has second differences of size s sqrt(6)
    assert describe_pattern(alpha, rough)["roughness"] == pytest.approx(0.1 * 6**0.5, rel=0.2)
    assert describe_pattern(alpha[:10], rho[:10])["roughness"] == 0
