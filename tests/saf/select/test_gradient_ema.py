"""The gradient selector's moving average."""

import pytest
import torch

from saf_titan.saf.select.gradient_ema import GradientEMA, head_norms

L, H, D, C = 2, 4, 3, 5
LIVE = torch.ones(L, H, dtype=torch.bool)


def gradients(step: int, num_kv_heads: int = H) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(step)
    return [
        (
            torch.randn(H * D, C, generator=generator),
            torch.randn(num_kv_heads * D, C, generator=generator),
            num_kv_heads,
        )
        for _ in range(L)
    ]


def test_norms_by_head() -> None:
    gradient = torch.arange(H * D * C).view(H * D, C).float()
    expected = torch.stack([gradient[h * D : (h + 1) * D].norm() for h in range(H)]).double()
    torch.testing.assert_close(head_norms(gradient, H), expected)


def test_average_of_relative_norms() -> None:
    ema = GradientEMA(L, H, decay=0.5)
    relatives = []
    for step in range(3):
        ema.update(gradients(step))
        norms = torch.stack([head_norms(q, H) + head_norms(k, H) for q, k, _ in gradients(step)])
        relatives.append(norms / norms.mean())
    expected = (relatives[0] / 8 + relatives[1] / 4 + relatives[2] / 2) / (7 / 8)
    torch.testing.assert_close(ema.scores(LIVE), expected)


def test_query_heads_of_a_group_share_the_key_gradient() -> None:
    ema = GradientEMA(L, H)
    ema.update(gradients(0, num_kv_heads=2))
    (query, key, _), *_ = gradients(0, num_kv_heads=2)
    ratio = ema.scores(LIVE)[0] / (head_norms(query, H) + head_norms(key, 2)[[0, 0, 1, 1]])
    torch.testing.assert_close(ratio, ratio[:1].expand(H))


@pytest.mark.parametrize("num_kv_heads", [H, 2])
def test_static_heads_take_no_part(num_kv_heads: int) -> None:
    ema = GradientEMA(L, H)
    step = gradients(0, num_kv_heads)
    for query, key, _ in step:
        query[:D] = 0
        # the key head of a group goes on learning
        if num_kv_heads == H:
            key[:D] = 0
    ema.update(step)
    live = LIVE.clone()
    live[:, 0] = False
    scores = ema.scores(live)
    assert scores[:, 0].isnan().all()
    assert scores[:, 1:].mean().item() == pytest.approx(1)


def test_resume_goes_on_where_it_stopped() -> None:
    original, resumed = GradientEMA(L, H), GradientEMA(L, H)
    original.update(gradients(0))
    resumed.load_state_dict(original.state_dict())
    for ema in (original, resumed):
        ema.update(gradients(1))
    assert torch.equal(original.scores(LIVE), resumed.scores(LIVE))


def test_impossible_uses_are_refused() -> None:
    with pytest.raises(ValueError, match="has seen no step yet"):
        GradientEMA(L, H).scores(LIVE)
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1"):
        GradientEMA(L, H, decay=1)
    with pytest.raises(ValueError, match=r"for \(L, H\) = \(1, 4\)"):
        GradientEMA(L, H).load_state_dict(GradientEMA(1, H).state_dict())
