"""Dense mixing against its definition: values, gradients, shorter sequences, grouped heads."""

import pytest
import torch
from torch import Tensor

from saf_titan.ops import mixed_attention, prepare_pattern
from saf_titan.ops.dense_mix import dense_attention, dense_mix, dense_mix_naive
from saf_titan.ops.pattern import attention_rows

T_FIT = 600


def patterns(num_heads: int, T: int = T_FIT, dtype: torch.dtype = torch.float32) -> Tensor:
    """Causal rows that sum to 1, under garbage that nobody may read."""
    generator = torch.Generator().manual_seed(0)
    logits_HTT = torch.randn(num_heads, T, T, generator=generator, dtype=torch.float64)
    future_TT = torch.ones(T, T, dtype=torch.bool).triu(1)
    p_HTT = logits_HTT.masked_fill(future_TT, -torch.inf).softmax(-1)
    return p_HTT.masked_fill(future_TT, torch.nan).to(dtype)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("T", [1, 255, 257, T_FIT])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_values_and_gradients_are_those_of_the_definition(T: int, dtype: torch.dtype, tolerance: float) -> None:
    p_HTT, v_BTHD = patterns(2), values(3, T, 2, 5, dtype=dtype).requires_grad_()
    dy_BTHD = values(3, T, 2, 5, dtype=dtype)
    y_BTHD = dense_mix(v_BTHD, p_HTT)
    (dv_BTHD,) = torch.autograd.grad(y_BTHD, v_BTHD, dy_BTHD)
    assert y_BTHD.dtype == dv_BTHD.dtype == dtype

    v_exact = v_BTHD.detach().double().requires_grad_()
    exact = dense_mix_naive(v_exact, p_HTT.nan_to_num())
    (dv_exact,) = torch.autograd.grad(exact, v_exact, dy_BTHD.double())
    torch.testing.assert_close(y_BTHD.double(), exact, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(dv_BTHD.double(), dv_exact, rtol=tolerance, atol=tolerance)


# opcheck itself reads the gradient of the tensors it clones
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_operator_contract() -> None:
    x_BTHD = values(2, 9, 2, 3, dtype=torch.float64).requires_grad_()
    p_HTT = patterns(2, 9, torch.float64).nan_to_num()
    torch.library.opcheck(torch.ops.saf_titan.dense_mix.default, (x_BTHD, p_HTT, False))
    assert torch.autograd.gradcheck(lambda x: dense_mix(x, p_HTT), x_BTHD)


@pytest.mark.parametrize(
    ("num_kv_heads", "static"), [(4, (1, 2)), (2, (0, 1, 3)), (2, (2,)), (4, (0, 1, 2, 3))], ids=str
)
def test_a_layer_mixes_as_with_compact_patterns(num_kv_heads: int, static: tuple[int, ...]) -> None:
    B, T, H, D = 2, 24, 4, 8
    live = [head for head in range(H) if head not in static]
    alpha_ST, rho_ST = values(2, len(static), T + 5).unbind(0)
    q, v = values(B, T, len(live), D), values(B, T, num_kv_heads, D)
    kept = sorted({head // (H // num_kv_heads) for head in live})
    k = values(B, T, len(kept), D) if live else None
    arguments = (q if live else None, k, v)
    expected = mixed_attention(
        *arguments, live_heads=live, static_heads=static, pattern=prepare_pattern(alpha_ST, rho_ST), backend="naive"
    )
    p_STT = attention_rows(alpha_ST, rho_ST, 0, T + 5)
    found = dense_attention(*arguments, live_heads=live, static_heads=static, p_STT=p_STT)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="T=11 exceeds T_fit=10"):
        dense_mix(values(1, 11, 2, 3), patterns(2, 10))
    with pytest.raises(ValueError, match="do not fit"):
        dense_mix(values(1, 10, 3, 3), patterns(2, 10))
