"""The decision of a freeze event: order, gate, top-up, caps, shortfall, ramps."""

import logging
import math

import pytest
import torch

from saf_titan.saf.fit.compact import dense_pattern
from saf_titan.saf.plan.plan import StaticPlan
from tests.saf.plans import plan_of
from tests.saf.synthetic import T, calibration

NAN = math.nan
SCORES = [[0.1, 0.9, 0.3, 0.7], [0.2, 0.8, 0.4, 0.6]]


def slots(plan: StaticPlan) -> list[tuple[int, int]]:
    return [(head.layer, head.head) for head in plan.heads]


def test_the_most_static_heads_are_chosen() -> None:
    data = calibration(SCORES)
    plan = plan_of(data, step=100, rate=0.5)
    assert slots(plan) == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert [head.rank for head in plan.heads] == [0, 2, 1, 3]
    assert [head.score for head in plan.heads] == [0.1, 0.3, 0.2, 0.4]
    assert {head.step for head in plan.heads} == {100}
    assert plan.skipped == ()
    assert (plan.selector, plan.content, plan.rate, plan.T_fit) == ("variance", "mean", 0.5, T)
    assert plan.record == data.record
    for head in plan.heads:
        assert {vector_T.dtype for vector_T in head.pattern.vectors} == {torch.float32}
    fitted = dense_pattern(*(vector_T[None] for vector_T in plan.heads[0].pattern.vectors))
    torch.testing.assert_close(fitted[0], data.mean_map_LHPP[0, 0], rtol=0, atol=1e-3)
    assert plan.heads[0].fit_kl < 1e-5
    # the certificate of the fast path goes along
    assert all(head.pattern.fft_error is not None and 0 < head.pattern.fft_error < 1e-4 for head in plan.heads)


def test_another_selector_chooses_other_heads() -> None:
    plan = plan_of(calibration(SCORES), step=0, rate=0.25, selector="kl")
    assert slots(plan) == [(0, 3), (1, 3)]
    assert plan.selector == "kl"


def test_heads_that_do_not_fit_are_replaced_by_the_next() -> None:
    plan = plan_of(calibration(SCORES, unfit=((0, 0), (0, 2))), step=0, rate=0.5)
    assert slots(plan) == [(0, 3), (1, 0), (1, 2), (1, 3)]
    assert [(s.layer, s.head, s.score) for s in plan.skipped] == [(0, 0, 0.1), (0, 2, 0.3)]
    assert all(s.fit_kl > 0.2 and s.reason.endswith("nat > 0.2") for s in plan.skipped)
    assert [head.rank for head in plan.heads] == [5, 1, 3, 4]


def test_the_gate_can_be_opened() -> None:
    plan = plan_of(calibration(SCORES, unfit=((0, 0),)), step=0, rate=0.25, max_fit_kl=1e9)
    assert slots(plan) == [(0, 0), (1, 0)]
    assert plan.heads[0].fit_kl > 0.2


def test_layer_cap() -> None:
    plan = plan_of(calibration([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]), step=0, rate=0.5, max_per_layer=2)
    assert slots(plan) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(s.layer, s.head, s.fit_kl, s.reason) for s in plan.skipped] == [
        (0, 2, None, "layer 0 is full"),
        (0, 3, None, "layer 0 is full"),
    ]


def test_a_rejected_head_leaves_its_place_in_the_layer() -> None:
    # L0H1 must not be passed over for a cap that L0H0, which does not fit, would have filled
    data = calibration([[0.1, 0.2], [0.3, 0.4]], unfit=((0, 0),))
    assert slots(plan_of(data, step=0, rate=0.5, max_per_layer=1)) == [(0, 1), (1, 0)]


def test_excluded_layers_get_no_static_head() -> None:
    assert slots(plan_of(calibration(SCORES), step=0, rate=0.25, exclude_layers=[0])) == [(1, 0), (1, 2)]


def test_too_few_heads_are_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    data = calibration(SCORES, unfit=((0, 0), (1, 0)))
    message = (
        "only 6 of the 8 heads that rate 1 asks for can be static: 2 do not fit within 0.2 nat, 0 are in full layers"
    )
    with pytest.raises(ValueError, match=message):
        plan_of(data, step=0, rate=1)
    with caplog.at_level(logging.WARNING):
        plan = plan_of(data, step=0, rate=1, on_shortfall="warn")
    assert len(plan.heads) == 6
    assert message in caplog.text


def test_a_ramp_adds_to_the_plan_so_far() -> None:
    first = plan_of(calibration(SCORES), step=10, rate=0.25)
    assert slots(first) == [(0, 0), (1, 0)]
    later = calibration([[NAN, 0.9, 0.8, 0.1], [NAN, 0.2, 0.3, 0.4]])
    second = plan_of(later, step=20, rate=0.5, base_plan=first)
    assert slots(second) == [(0, 0), (0, 3), (1, 0), (1, 1)]
    assert [head.step for head in second.heads] == [10, 20, 10, 20]
    assert torch.equal(second.heads[0].pattern.vectors[0], first.heads[0].pattern.vectors[0])
    assert (second.step, second.rate) == (20, 0.5)
    # a layer's cap counts what is static already
    capped = plan_of(later, step=20, rate=0.5, base_plan=first, max_per_layer=1, on_shortfall="warn")
    assert slots(capped) == slots(first)
    # and a rate that is reached already changes nothing
    assert slots(plan_of(later, step=20, rate=0.25, base_plan=first)) == slots(first)


def test_a_plan_that_the_calibration_does_not_know_is_refused() -> None:
    first = plan_of(calibration(SCORES), step=10, rate=0.25)
    with pytest.raises(ValueError, match="disagree about which heads are static: L0H0, L1H0"):
        plan_of(calibration(SCORES), step=20, rate=0.5, base_plan=first)
    with pytest.raises(ValueError, match="disagree about which heads are static: L0H0"):
        plan_of(calibration([[NAN, 0.2], [0.3, 0.4]]), step=20, rate=0.5)


def test_unknown_names_are_refused() -> None:
    data = calibration(SCORES)
    with pytest.raises(ValueError, match="on_shortfall = 'ignore' must be one of"):
        plan_of(data, step=0, rate=0.5, on_shortfall="ignore")
    with pytest.raises(ValueError, match="content = 'average' must be one of"):
        plan_of(data, step=0, rate=0.5, content="average")
    with pytest.raises(ValueError, match="max_per_layer = -1 must be a whole number, at least 0"):
        plan_of(data, step=0, rate=0.5, max_per_layer=-1)


def test_repeated_events_give_the_same_plan() -> None:
    assert (
        plan_of(calibration(SCORES), step=1, rate=0.5).digest == plan_of(calibration(SCORES), step=1, rate=0.5).digest
    )


def test_random_selection_depends_on_the_seed_alone() -> None:
    plans = [plan_of(calibration(SCORES), step=0, rate=0.5, selector="random", seed=seed) for seed in range(8)]
    assert len({tuple(slots(plan)) for plan in plans}) > 4
    half, quarter = plans[0], plan_of(calibration(SCORES), step=0, rate=0.25, selector="random", seed=0)
    assert set(slots(quarter)) < set(slots(half))


def test_random_layer_matched_takes_as_many_of_each_layer_as_variance() -> None:
    data = calibration([[0.1, 0.2, 0.3, 0.9], [0.4, 0.8, 0.7, 0.6]], unfit=((0, 1),))
    assert [layer for layer, _ in slots(plan_of(data, step=0, rate=0.5))] == [0, 0, 1, 1]
    chosen = set()
    for seed in range(8):
        plan = plan_of(data, step=0, rate=0.5, selector="random_layer_matched", seed=seed)
        assert [head.layer for head in plan.heads] == [0, 0, 1, 1]
        assert (0, 1) not in slots(plan)
        chosen |= set(slots(plan))
    assert len(chosen) > 5


def test_a_shortfall_of_random_heads_matched_by_layer_is_that_of_variance() -> None:
    data = calibration(SCORES, unfit=((0, 0), (0, 2), (1, 0)))
    for selector in ("variance", "random_layer_matched"):
        with pytest.raises(ValueError, match=r"only 5 of the 8 heads .*: 3 do not fit within 0.2 nat, 0 are in full"):
            plan_of(data, step=0, rate=1, selector=selector)
    data = calibration(SCORES)
    with pytest.raises(ValueError, match=r"only 6 of the 8 heads .*: 0 do not fit within 0.2 nat, 2 are in full"):
        plan_of(data, step=0, rate=1, selector="random_layer_matched", max_per_layer=3)
    # a layer that has its share is not full
    matched = [plan_of(data, step=0, rate=0.375, selector="random_layer_matched", seed=seed) for seed in range(8)]
    reasons = {skipped.reason for plan in matched for skipped in plan.skipped}
    assert reasons <= {"layer 0 has as many as by variance", "layer 1 has as many as by variance"}
    assert reasons


def test_a_list_of_heads_is_taken_as_it_is_or_not_at_all() -> None:
    data = calibration(SCORES, unfit=((1, 1),))
    plan = plan_of(data, step=0, rate=0.25, selector="list", heads=[(1, 3), (0, 1)])
    assert slots(plan) == [(0, 1), (1, 3)]
    assert [head.rank for head in plan.heads] == [1, 0]
    with pytest.raises(ValueError, match="only 1 of the 2 heads"):
        plan_of(data, step=0, rate=0.25, selector="list", heads=[(1, 1), (0, 1)], on_shortfall="warn")
    with pytest.raises(ValueError, match="names L2H0, which are not live"):
        plan_of(data, step=0, rate=0.25, selector="list", heads=[(2, 0), (0, 1)])
    with pytest.raises(ValueError, match=r"must name 2 heads, .* but names 3"):
        plan_of(data, step=0, rate=0.25, selector="list", heads=[(0, 0), (0, 1), (0, 2)])
    with pytest.raises(ValueError, match="names L0H1, L1H3 more than once"):
        plan_of(data, step=0, rate=0.5, selector="list", heads=[(0, 1), (1, 3), (1, 3), (0, 1)])


@pytest.mark.parametrize("content", ["distance", "uniform", "random"])
def test_contents_share_the_heads_and_differ_in_the_pattern(content: str) -> None:
    data = calibration(SCORES, unfit=((0, 0),))
    mean = plan_of(data, step=0, rate=0.5)
    other = plan_of(data, step=0, rate=0.5, content=content)
    assert slots(other) == slots(mean)
    assert other.skipped == mean.skipped
    assert other.content == content
    assert other.digest != mean.digest
    for ours, theirs in zip(other.heads, mean.heads, strict=True):
        assert ours.fit_kl > theirs.fit_kl - 1e-6


@pytest.mark.parametrize("selector", ["variance", "random_layer_matched", "list"])
def test_pruning_passes_no_head_over_for_a_bad_fit(selector: str) -> None:
    every = tuple((layer, head) for layer in range(2) for head in range(4))
    data = calibration(SCORES, unfit=every)
    with pytest.raises(ValueError, match="do not fit within"):
        plan_of(data, step=0, rate=0.5)
    heads = [(0, 0), (0, 2), (1, 0), (1, 2)]
    plan = plan_of(data, step=0, rate=0.5, selector=selector, heads=heads, content="prune")
    assert len(plan.heads) == 4
    assert all(skipped.fit_kl is None for skipped in plan.skipped)
    assert {head.fit_kl for head in plan.heads} == {0.0}
    assert {head.pattern.fft_error for head in plan.heads} == {None}
    if selector == "variance":
        assert slots(plan) == heads
