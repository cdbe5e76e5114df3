"""Compensated values: the regression's optimum, its limits, and that it removes what can be removed."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from saf_titan.ops import prepare_pattern
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.fit.compact import dense_pattern
from saf_titan.saf.install.compensate import STRENGTHS, ValueRegression, compensated_weights, cross_validated_rows
from saf_titan.saf.plan.plan import StaticHead, StaticPlan
from tests.saf.patterns import causal_softmax
from tests.saf.plans import plan_of
from tests.saf.tiny_model import Block

B, T, C, D = 4, 24, 10, 3


def example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A fixed pattern, inputs with a direction shared by all tokens, live outputs near the pattern's, value rows."""
    generator = torch.Generator().manual_seed(0)
    alpha, rho = torch.randn(2, 1, T, generator=generator)
    x = torch.randn(B, T, C, generator=generator) + 2 * torch.randn(C, generator=generator)
    wv = torch.randn(D, C, generator=generator)
    fitted = dense_pattern(alpha, rho)
    live = causal_softmax(fitted.log() + torch.randn(B, T, T, generator=generator, dtype=torch.float64))
    y = (live @ (x @ wv.T).double()).float()
    return torch.stack([alpha, rho]), x, y, wv


def regression(parameters: Tensor, x: Tensor, y: Tensor, batch_size: int = B) -> ValueRegression:
    equations = ValueRegression(prepare_pattern(*parameters), C, D)
    for x_part, y_part in zip(x.split(batch_size), y.split(batch_size), strict=True):
        equations.add(x_part, y_part)
    return equations


def error(parameters: Tensor, x: Tensor, y: Tensor, wv: Tensor) -> float:
    frozen = dense_pattern(*parameters)[0] @ (x @ wv.T).double()
    return (frozen - y).square().sum().item()


def test_new_rows_bring_the_frozen_head_nearer_to_the_live_one() -> None:
    parameters, x, y, wv = example()
    solved = regression(parameters, x, y).solve(wv)
    assert error(parameters, x, y, solved) < 0.9 * error(parameters, x, y, wv)


def test_without_penalty_it_is_least_squares() -> None:
    parameters, x, y, wv = example()
    z = dense_pattern(*parameters)[0] @ x.double()
    expected = torch.linalg.lstsq(z.flatten(0, 1), y.flatten(0, 1).double()).solution.T.float()
    solved = regression(parameters, x, y).solve(wv, strength=1e-9)
    torch.testing.assert_close(solved, expected, rtol=1e-3, atol=1e-4)


def test_a_strong_penalty_keeps_the_old_rows() -> None:
    parameters, x, y, wv = example()
    torch.testing.assert_close(regression(parameters, x, y).solve(wv, strength=1e9), wv, rtol=1e-5, atol=1e-6)


def test_the_objective_is_minimal() -> None:
    parameters, x, y, wv = example()
    strength = 0.1
    z = (dense_pattern(*parameters)[0] @ x.double()).flatten(0, 1)
    ridge = strength * z.square().sum() / C

    def objective(rows: Tensor) -> float:
        return error(parameters, x, y, rows) + (ridge * (rows - wv).double().square().sum()).item()

    solved = regression(parameters, x, y).solve(wv, strength=strength)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        assert objective(solved) < objective(solved + 1e-2 * torch.randn(D, C, generator=generator))


def test_a_head_that_lost_nothing_keeps_its_rows() -> None:
    parameters, x, _, wv = example()
    same = (dense_pattern(*parameters)[0] @ (x @ wv.T).double()).float()
    torch.testing.assert_close(regression(parameters, x, same).solve(wv), wv, rtol=1e-3, atol=1e-4)


def test_batches_add_up() -> None:
    parameters, x, y, wv = example()
    torch.testing.assert_close(regression(parameters, x, y, 1).solve(wv), regression(parameters, x, y).solve(wv))


def test_impossible_regressions_are_refused() -> None:
    parameters, x, y, wv = example()
    with pytest.raises(ValueError, match="must be positive, got 0"):
        regression(parameters, x, y).solve(wv, strength=0)
    with pytest.raises(ValueError, match="for one head, but the pattern has 2"):
        ValueRegression(prepare_pattern(torch.zeros(2, T), torch.zeros(2, T)), C, D)


def test_the_excess_tells_rows_apart_by_their_error() -> None:
    parameters, x, y, wv = example()
    equations, other = regression(parameters, x, y), wv + torch.randn(D, C, generator=torch.Generator().manual_seed(2))
    difference = error(parameters, x, y, other) - error(parameters, x, y, wv)
    assert equations.excess(other) - equations.excess(wv) == pytest.approx(difference, rel=1e-4)


def halves_of(parameters: Tensor, x: Tensor, y: Tensor) -> tuple[ValueRegression, ValueRegression]:
    return regression(parameters, x[0::2], y[0::2]), regression(parameters, x[1::2], y[1::2])


def shifted_outputs(parameters: Tensor, x: Tensor, wv: Tensor, noise: float) -> Tensor:
    """What the frozen head would give with rows a little off, and noise of which nothing can be learned."""
    generator = torch.Generator().manual_seed(3)
    rows = wv + 0.1 * torch.randn(D, C, generator=generator)
    y = (dense_pattern(*parameters)[0] @ (x @ rows.T).double()).float()
    return y + noise * torch.randn(B, T, D, generator=generator)


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_the_strength_is_the_one_that_errs_least_across_the_halves(noise: float) -> None:
    parameters, x, _, wv = example()
    y = shifted_outputs(parameters, x, wv, noise)
    halves = halves_of(parameters, x, y)

    def error_across(strength: float) -> float:
        first, second = (half.solve(wv, strength=strength) for half in halves)
        return error(parameters, x[1::2], y[1::2], first) + error(parameters, x[0::2], y[0::2], second)

    best = min(STRENGTHS, key=error_across)
    assert min(STRENGTHS) < best
    rows = cross_validated_rows(halves, wv)
    torch.testing.assert_close(rows, regression(parameters, x, y).solve(wv, strength=best), rtol=1e-4, atol=1e-5)


def test_rows_that_err_more_across_the_halves_are_not_offered() -> None:
    parameters, x, _, wv = example()
    y = shifted_outputs(parameters, x, wv, noise=8.0)
    assert error(parameters, x, y, regression(parameters, x, y).solve(wv)) < error(parameters, x, y, wv)
    assert cross_validated_rows(halves_of(parameters, x, y), wv) is None


def test_a_single_sequence_has_no_second_half() -> None:
    parameters, x, y, wv = example()
    with pytest.raises(ValueError, match="two sequences or more"):
        cross_validated_rows(halves_of(parameters, x[:1], y[:1]), wv)


def frozen_model_and_plan() -> tuple[nn.Sequential, Tensor, StaticPlan]:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).requires_grad_(False)
    x = torch.randn(7, 20, 12, generator=torch.Generator().manual_seed(1)) + 1
    attentions = [block.attention for block in model]
    calibration = calibrate(attentions, [x], model)
    return model, x, plan_of(calibration, step=4, rate=0.5, max_fit_kl=100)


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_heads_of_a_model(batch_size: int) -> None:
    model, x, plan = frozen_model_and_plan()
    rows = compensated_weights([block.attention for block in model], x.split(batch_size), model, plan)
    assert len(rows) == 2 < len(plan.heads)
    stream = x
    for layer, block in enumerate(model):
        q, k, v = block.attention.qkv_linear(stream)
        live = block.attention.inner_attention(q, k, v)
        for head in (head for head in plan.heads if head.layer == layer):
            wv = block.attention.qkv_linear.wv.weight.view(3, 4, 12)[head.head]
            parameters = torch.stack(head.pattern.vectors)[:, None]
            y = live[:, :, head.head]
            halves = regression_of(head, stream[0::2], y[0::2]), regression_of(head, stream[1::2], y[1::2])
            expected = cross_validated_rows(halves, wv)
            if expected is None:
                assert (layer, head.head) not in rows
                continue
            new = rows.pop((layer, head.head))
            assert new.part == "v"
            torch.testing.assert_close(new.block, expected, rtol=1e-3, atol=1e-4)
            assert error(parameters, stream, y, expected) < error(parameters, stream, y, wv)
        stream = block(stream)
    assert not rows
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def regression_of(head: StaticHead, x: Tensor, y: Tensor, input_dim: int = 12) -> ValueRegression:
    equations = ValueRegression(prepare_pattern(*(vector_T[None] for vector_T in head.pattern.vectors)), input_dim, 4)
    equations.add(x, y)
    return equations


def test_only_the_heads_of_the_event_are_solved() -> None:
    model, x, plan = frozen_model_and_plan()
    attentions = [block.attention for block in model]
    first, *others = compensated_weights(attentions, [x], model, plan)
    heads = [replace(head, step=1) if (head.layer, head.head) == first else head for head in plan.heads]
    assert list(compensated_weights(attentions, [x], model, replace(plan, heads=tuple(heads)))) == others


def test_a_missing_forward_is_refused() -> None:
    model, _, plan = frozen_model_and_plan()
    with pytest.raises(ValueError, match="without a forward through every layer"):
        compensated_weights([block.attention for block in model], [], model, plan)


def test_heads_that_share_values_get_new_output_columns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(num_kv_heads=1), Block(num_kv_heads=1)).requires_grad_(False)
    x = torch.randn(8, 20, 12, generator=torch.Generator().manual_seed(1)) + 1
    attentions = [block.attention for block in model]
    plan = plan_of(calibrate(attentions, [x], model), step=4, rate=0.5, max_fit_kl=100)
    new = compensated_weights(attentions, [x], model, plan)
    assert new
    stream = x
    for layer, block in enumerate(model):
        q, k, v = block.attention.qkv_linear(stream)
        live = block.attention.inner_attention(q, k, v)
        for head in (head for head in plan.heads if (layer, head.head) in new):
            weights = new[layer, head.head]
            assert (weights.part, weights.block.shape) == ("o", (12, 4))
            wo = block.attention.wo.weight[:, head.head * 4 : head.head * 4 + 4]
            alpha, rho = (vector_T[None] for vector_T in head.pattern.vectors)
            mixed = (dense_pattern(alpha, rho)[0] @ v[:, :, 0].double()).float()
            # by definition: ridge regression from the mixed values to the live output, then the old columns
            y = live[:, :, head.head]
            halves = [regression_of(head, v[n::2, :, 0], y[n::2], input_dim=4) for n in range(2)]
            solved = cross_validated_rows((halves[0], halves[1]), torch.eye(4))
            assert solved is not None
            torch.testing.assert_close(weights.block, wo @ solved, rtol=1e-3, atol=1e-4)
            # the head's output itself comes nearer, before the projection and behind it
            assert (mixed @ solved.T - y).square().sum() < (mixed - y).square().sum()
        stream = block(stream)
