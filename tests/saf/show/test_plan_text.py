"""Plans as text."""

import dataclasses

from saf_titan.saf.fit.pattern import CompactPattern
from saf_titan.saf.show.plan_text import plan_diff, plan_map, plan_table
from tests.saf.plans import plan_of
from tests.saf.synthetic import calibration

DATA = calibration([[0.1, 0.4, 0.8], [0.2, 0.3, 0.9]], unfit=((0, 0),))
PLAN = plan_of(DATA, step=7, rate=1 / 3)


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
    assert plan_diff(PLAN, plan_of(DATA, step=7, rate=1 / 3)) == []
    other = plan_diff(PLAN, plan_of(DATA, step=8, rate=1 / 3, selector="kl"))
    assert other[:2] == ["step: 7 -> 8", "selector: variance -> kl"]
    assert "only in the first: L1H0" in other
    assert "only in the second: L0H1" in other or "only in the second: L0H2" in other
    alpha_T, rho_T = PLAN.heads[0].pattern.vectors
    moved = dataclasses.replace(PLAN.heads[0], pattern=CompactPattern(alpha_T + 0.25, rho_T))
    changed = dataclasses.replace(PLAN, heads=(moved, *PLAN.heads[1:]))
    assert plan_diff(PLAN, changed) == ["L1H0: pattern differs by up to 2.50e-01 nat"]
    assert plan_diff(PLAN, dataclasses.replace(PLAN, skipped=())) == ["the skipped heads differ"]
