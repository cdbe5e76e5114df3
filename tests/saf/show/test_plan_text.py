"""Plans as text."""

import dataclasses

from saf_titan.saf.fit.pattern import CompactPattern
from saf_titan.saf.plan.plan import StaticPlan
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
    error = PLAN.heads[0].pattern.fft_error

    def with_pattern(pattern: CompactPattern) -> StaticPlan:
        moved = dataclasses.replace(PLAN.heads[0], pattern=pattern)
        return dataclasses.replace(PLAN, heads=(moved, *PLAN.heads[1:]))

    assert plan_diff(PLAN, with_pattern(CompactPattern(alpha_T + 0.25, rho_T, error))) == [
        "L1H0: pattern differs by up to 2.50e-01 nat"
    ]
    # the certified error alone, in a head that neither plan skipped
    first, second, third = (with_pattern(CompactPattern(alpha_T, rho_T, e)) for e in (None, 0.25, 0.5))
    assert plan_diff(first, second) == ["L1H0: fft_error none -> 0.25"]
    assert plan_diff(second, third) == ["L1H0: fft_error 0.25 -> 0.5"]


def test_diff_of_skipped_heads() -> None:
    (head,) = PLAN.skipped
    without = dataclasses.replace(PLAN, skipped=())
    assert plan_diff(PLAN, without) == ["skipped only in the first: L0H0"]
    assert plan_diff(without, PLAN) == ["skipped only in the second: L0H0"]
    other = dataclasses.replace(PLAN, skipped=(dataclasses.replace(head, reason="full layer"),))
    (line,) = plan_diff(PLAN, other)
    assert line == f"L0H0, skipped in both: score 0.1, {head.reason} -> score 0.1, full layer"
    # beside other differences as well
    assert plan_diff(PLAN, dataclasses.replace(without, step=8)) == ["step: 7 -> 8", "skipped only in the first: L0H0"]
