"""Rows of static heads in named weights, with and without grouped queries."""

import dataclasses

import pytest
import torch

from saf_titan.saf.fit.pattern import PrunedPattern
from saf_titan.saf.install.rows import HeadShape, StaticRows, find_shape, remove_rows, restore_rows, zero_rows
from saf_titan.saf.plan.plan import StaticPlan
from tests.saf.plan.test_plan import head, plan

H, D, C = 4, 3, 5


def weights(num_kv_heads: int = H) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = {"wq": H * D, "wk": num_kv_heads * D, "wv": num_kv_heads * D}
    shapes = {f"qkv_linear.{name}": (num_rows, C) for name, num_rows in rows.items()} | {"wo": (C, H * D)}
    return {
        f"layers.{layer}.attention.{name}.weight": torch.randn(shape, generator=generator)
        for layer in range(3)
        for name, shape in shapes.items()
    }


PLAN: StaticPlan = plan(head(0, 1), head(2, 0), head(2, 1))
PRUNED = dataclasses.replace(
    PLAN,
    content="prune",
    heads=tuple(dataclasses.replace(static, pattern=PrunedPattern(PLAN.T_fit)) for static in PLAN.heads),
)


def test_shape_from_weights() -> None:
    assert find_shape(weights(), H) == HeadShape(H, H, D)
    assert find_shape(weights(2), H) == HeadShape(H, 2, D)
    assert find_shape(
        {"model.layers.7.attention.wq.weight": torch.ones(8, 2), "layers.7.attention.wk.weight": torch.ones(4, 2)}, 2
    ) == (2, 1, 4)
    with pytest.raises(ValueError, match="12 query and 12 key rows cannot be those of 5"):
        find_shape(weights(), 5)
    with pytest.raises(ValueError, match="no query and key projections"):
        find_shape({"layers.0.attention.wqkv.weight": torch.ones(4, 4)}, 2)


def test_zeroing_touches_the_rows_of_static_heads_alone() -> None:
    changed, before = weights(), weights()
    names = zero_rows(changed, StaticRows(PLAN, find_shape(changed, H)))
    assert names == [f"layers.{layer}.attention.qkv_linear.{name}.weight" for layer in (0, 2) for name in ("wq", "wk")]
    for name, tensor in changed.items():
        static = {0: [1], 2: [0, 1]}.get(int(name.split(".")[1]), []) if name in names else []
        for h in range(len(tensor) // D):
            rows = slice(h * D, (h + 1) * D)
            assert torch.equal(tensor[rows], torch.zeros(D, C) if h in static else before[name][rows])


def test_a_shared_key_head_is_static_only_if_its_whole_group_is() -> None:
    rows = StaticRows(PLAN, HeadShape(H, 2, D))
    # layer 0: one of the group's two query heads; layer 2: both
    assert rows.live("layers.0.attention.wk.weight") is None
    found = rows.live("layers.2.attention.wk.weight")
    assert found is not None
    assert (found[0], found[1].tolist()) == (0, [False] * D + [True] * D)


def test_moments_are_found_and_their_scalars_left_alone() -> None:
    moments = {
        "state.layers.0.attention.qkv_linear.wq.weight.exp_avg": torch.ones(H * D, C),
        "state.layers.0.attention.qkv_linear.wq.weight.step": torch.tensor(3.0),
        "state.layers.1.attention.qkv_linear.wq.weight.exp_avg": torch.ones(H * D, C),
    }
    zero_rows(moments, StaticRows(PLAN, HeadShape(H, H, D)))
    first, step, second = moments.values()
    assert first.sum() == (H - 1) * D * C
    assert step == 3
    assert second.sum() == H * D * C


@pytest.mark.parametrize("num_kv_heads", [H, 2])
def test_pruned_heads_lose_values_and_output_too(num_kv_heads: int) -> None:
    changed, before = weights(num_kv_heads), weights(num_kv_heads)
    zero_rows(changed, StaticRows(PRUNED, find_shape(changed, H)))
    name = "layers.2.attention.{}.weight".format
    output, values = name("wo"), name("qkv_linear.wv")
    assert changed[output][:, : 2 * D].abs().sum() == 0
    assert torch.equal(changed[output][:, 2 * D :], before[output][:, 2 * D :])
    dead = D * (1 if num_kv_heads == 2 else 2)
    assert changed[values][:dead].abs().sum() == 0
    assert torch.equal(changed[values][dead:], before[values][dead:])
    if num_kv_heads == 2:
        # another query head still reads this group's values
        shared = "layers.0.attention.qkv_linear.wv.weight"
        assert torch.equal(changed[shared], before[shared])


@pytest.mark.parametrize("chosen", [PLAN, PRUNED], ids=["mean", "prune"])
@pytest.mark.parametrize("num_kv_heads", [H, 2])
def test_removing_and_restoring(num_kv_heads: int, chosen: StaticPlan) -> None:
    original = weights(num_kv_heads)
    rows = StaticRows(chosen, find_shape(original, H))
    compact = remove_rows(original, rows)
    assert len(compact["layers.2.attention.qkv_linear.wq.weight"]) == (H - 2) * D
    assert len(compact["layers.1.attention.qkv_linear.wq.weight"]) == H * D
    restored = restore_rows(compact, rows)
    zero_rows(original, rows)
    assert restored.keys() == original.keys()
    assert all(torch.equal(restored[name], original[name]) for name in original)


def test_a_plan_of_a_wider_model_is_refused() -> None:
    with pytest.raises(ValueError, match="has a head 1, but the model has 1 heads"):
        StaticRows(PLAN, HeadShape(1, 1, D))
