"""Dense contents against their definitions, on every number of ranks, in plans and under their limit.

Covers saf/fit/dense_memory.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from saf_titan.heads.names import Head
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.fit.dense import DensePatterns, dense_patterns
from saf_titan.saf.fit.dense_memory import dense_excess
from saf_titan.saf.fit.registry import DENSE_CONTENTS
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.show.plan_text import plan_diff, plan_table
from tests.saf.calibrate.calibrate_worker import UNEVEN_HEADS, patterns_bytes
from tests.saf.fake_model import FakeModel, sequences, uneven_model
from tests.saf.plans import plan_of

NUM_SEQUENCES = 6


def scores_and_attention(model: FakeModel, slot: Head) -> tuple[Tensor, Tensor]:
    """s and P (B, T, T) in float64, by definition."""
    q_BTHD, k_BTHD = model.attentions[slot[0]].queries_and_keys(sequences(NUM_SEQUENCES))
    s_BTT = q_BTHD[:, :, slot[1]].double() @ k_BTHD[:, :, slot[1]].double().mT / q_BTHD.shape[3] ** 0.5
    future_TT = torch.ones(s_BTT.shape[1:], dtype=torch.bool).triu(1)
    return s_BTT, s_BTT.masked_fill(future_TT, -math.inf).softmax(2)


def patterns(
    model: FakeModel, heads: list[Head], content: str, *, seed: int = 0, batch_size: int = 2, **options: float
) -> Tensor:
    batches = sequences(NUM_SEQUENCES).split(batch_size)
    return dense_patterns(model.attentions, batches, model, heads, content, seed=seed, **options).p_NTT.double()


@pytest.mark.parametrize("batch_size", [2, NUM_SEQUENCES], ids=["kept", "inline"])
def test_mean_and_sharp_are_what_they_are_called(batch_size: int) -> None:
    model, heads = FakeModel(), [(2, 1), (0, 3)]
    means = patterns(model, heads, "dense_mean", batch_size=batch_size)
    sharps = patterns(model, heads, "sharp", batch_size=batch_size)
    for n, slot in enumerate(heads):
        s_BTT, p_BTT = scores_and_attention(model, slot)
        torch.testing.assert_close(means[n], p_BTT.mean(0), rtol=1e-4, atol=1e-6)
        future_TT = torch.ones(s_BTT.shape[1:], dtype=torch.bool).triu(1)
        sharp = s_BTT.mean(0).masked_fill(future_TT, -math.inf).softmax(1)
        torch.testing.assert_close(sharps[n], sharp, rtol=1e-4, atol=1e-6)


def test_draws_have_the_moments_of_the_data() -> None:
    model, slot = FakeModel(), (1, 0)
    s_BTT, p_BTT = scores_and_attention(model, slot)
    T = len(s_BTT[0])
    draws = {
        content: torch.stack([patterns(model, [slot], content, seed=seed)[0] for seed in range(200)])
        for content in ("gaussian", "dirichlet")
    }
    # log odds to the diagonal undo the softmax
    i, j = 12, 5
    odds = (draws["gaussian"][:, i, j] / draws["gaussian"][:, i, i]).log()
    expected = s_BTT[:, i, j].mean() - s_BTT[:, i, i].mean()
    spread = (s_BTT[:, i, j].var() + s_BTT[:, i, i].var()).sqrt()
    assert abs(odds.mean() - expected) < 4 * spread / math.sqrt(200)
    assert 0.8 < odds.std() / spread < 1.2

    mean_TT, drawn_TT = p_BTT.mean(0), draws["dirichlet"]
    torch.testing.assert_close(drawn_TT.mean(0), mean_TT, rtol=0, atol=0.05)
    # 16 times the precision that the moments of a row give: variances fall accordingly
    precision_T = 16 * ((1 - mean_TT.square().sum(1)) / p_BTT.var(0).sum(1) - 1)
    variance_T = ((1 - mean_TT.square().sum(1)) / (precision_T + 1))[T // 2 :]
    torch.testing.assert_close(drawn_TT.var(0).sum(1)[T // 2 :], variance_T, rtol=0.35, atol=0)


def test_a_lower_scale_spreads_the_draws() -> None:
    model, slot = FakeModel(), (1, 0)
    spreads = []
    for options in ({}, {"dirichlet_scale": 16.0}, {"dirichlet_scale": 2.0}):
        drawn = [patterns(model, [slot], "dirichlet", seed=seed, **options)[0] for seed in range(60)]
        spreads.append(float(torch.stack(drawn).var(0).sum(1).mean()))
    assert spreads[0] == spreads[1]
    # the variance of a row is proportional to 1 / (scale x precision + 1)
    assert 3 < spreads[2] / spreads[1] < 8
    for content in ("gaussian", "sharp"):
        assert torch.equal(*(patterns(model, [slot], content, dirichlet_scale=scale) for scale in (2.0, 16.0)))


@pytest.mark.parametrize("content", DENSE_CONTENTS)
def test_a_head_does_not_depend_on_the_company(content: str) -> None:
    model = FakeModel()
    together = patterns(model, [(0, 1), (1, 2), (2, 0)], content, seed=3)
    assert torch.equal(patterns(model, [(1, 2)], content, seed=3)[0], together[1])
    drawn = content in ("gaussian", "dirichlet")
    assert torch.equal(patterns(model, [(1, 2)], content, seed=4)[0], together[1]) != drawn


def test_patterns_do_not_depend_on_the_number_of_threads() -> None:
    model, heads, before = FakeModel(), [(1, 0), (1, 1), (1, 2), (2, 3)], torch.get_num_threads()
    found = []
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            found.append(patterns(model, heads, "dirichlet"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.distributed
@pytest.mark.parametrize("content", DENSE_CONTENTS)
def test_every_number_of_ranks_gives_the_same_bytes(four_ranks: Path, content: str) -> None:
    model = uneven_model()
    alone = dense_patterns(model.attentions, sequences(6).split(2), model, UNEVEN_HEADS, content, seed=5)
    for rank in range(4):
        assert (four_ranks / f"{content}.rank{rank}").read_bytes() == patterns_bytes(alone)


def test_static_heads_have_no_dense_pattern() -> None:
    with pytest.raises(ValueError, match="only 1 of 2 heads have queries"):
        patterns(uneven_model(), [(0, 1), (1, 0)], "sharp")


@pytest.mark.parametrize("content", DENSE_CONTENTS)
def test_a_plan_keeps_its_patterns_in_a_file(content: str, tmp_path: Path) -> None:
    model, batches = FakeModel(), sequences(NUM_SEQUENCES).split(2)
    calibration = calibrate(model.attentions, batches, model)

    def dense(heads: Sequence[Head], name: str) -> DensePatterns:
        return dense_patterns(model.attentions, batches, model, heads, name)

    mean = plan_of(calibration, step=3, rate=0.25, max_fit_kl=9)
    plan = plan_of(calibration, step=3, rate=0.25, max_fit_kl=9, content=content, dense=dense)
    assert [(h.layer, h.head) for h in plan.heads] == [(h.layer, h.head) for h in mean.heads]
    plan.save(tmp_path / "plan")
    again = StaticPlan.load(tmp_path / "plan")
    assert again.digest == plan.digest
    assert plan_diff(plan, again) == []
    assert content in "".join(plan_diff(mean, plan))
    assert "T x T matrices" in plan_table(plan)
    for layer, heads in plan.layers().items():
        expected = patterns(model, [head.slot for head in heads], content)
        found = torch.stack([head.pattern.rows(0, plan.T_fit) for head in again.layers()[layer]])
        assert torch.equal(found, expected)
    if content == "dense_mean":
        assert {head.fit_kl for head in plan.heads} == {0.0}
    else:
        slot = plan.heads[0].layer, plan.heads[0].head
        mean_TT, p_TT = scores_and_attention(model, slot)[1].mean(0), expected_pattern(plan)
        kl = (mean_TT * (mean_TT.clamp(min=1e-30).log() - p_TT.clamp(min=1e-30).log())).sum() / len(mean_TT)
        assert plan.heads[0].fit_kl == pytest.approx(kl.item(), rel=1e-3)


def expected_pattern(plan: StaticPlan) -> Tensor:
    return plan.heads[0].pattern.rows(0, plan.T_fit)


def test_too_much_memory_is_refused_before_anything_is_made() -> None:
    model, batches = FakeModel(), sequences(NUM_SEQUENCES).split(2)
    calibration = calibrate(model.attentions, batches, model)

    def never(heads: Sequence[Head], content: str) -> DensePatterns:
        raise AssertionError("asked for patterns")

    with pytest.raises(
        ValueError, match=r"sharp keeps .*: 6 heads x 24 x 24 x 4 bytes = 13,824 bytes .* 1e-05 GiB; low"
    ):
        plan_of(calibration, step=0, rate=0.5, content="sharp", dense=never, max_dense_gib=1e-5)
    assert dense_excess("sharp", 128, 2048, 2.0) is None
    assert dense_excess("sharp", 129, 2048, 2.0) is not None
    with pytest.raises(ValueError, match="which statistics do not hold"):
        plan_of(calibration, step=0, rate=0.5, content="sharp")
