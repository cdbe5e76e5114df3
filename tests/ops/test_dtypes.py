"""Dtypes and devices: casts of the pattern, autocast, mixed dtypes, CPU paths with values on a GPU.

Covers ops/mixed_attention/autocast.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from saf_titan.ops import StaticPattern, mixed_attention, prepare_pattern, static_mix, static_mix_naive
from saf_titan.ops.attention_stats import attention_stats
from saf_titan.ops.dense_mix import dense_attention, dense_mix
from saf_titan.ops.pattern import PATHS
from tests.ops.pattern_families import make_families

T = 150
LAYER = {"live_heads": (0, 2), "static_heads": (1, 3)}


def values(*heads: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, T, n, 8, generator=generator).to(dtype) for n in heads]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_cast_pattern_is_refused(dtype: torch.dtype) -> None:
    pattern = prepare_pattern(*make_families(("sink24-local", "power1"), T))
    cast = StaticPattern(*(x.to(dtype) if x.is_floating_point() else x for x in pattern))
    message = f"alpha_HT of the pattern is {dtype}, but must stay torch.float32.*keep .* out of module.half"
    q, k, v = values(2, 2, 4)
    with pytest.raises(ValueError, match=message):
        static_mix(v[:, :, :2].half(), cast)
    with pytest.raises(ValueError, match=message):
        mixed_attention(q, k, v, **LAYER, pattern=cast)


@pytest.mark.parametrize("backend", ["split", "auto", "naive"])
@pytest.mark.parametrize("dtypes", [(torch.float32,) * 3, (torch.float32, torch.float32, torch.bfloat16)])
def test_under_autocast_a_mixed_layer_has_the_dtypes_of_a_live_one(
    backend: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    pattern = prepare_pattern(*make_families(("power1", "local"), T))
    q, k, v = (x.to(dtype) for x, dtype in zip(values(4, 4, 4), dtypes, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        live = mixed_attention(q, k, v, live_heads=(0, 1, 2, 3), static_heads=(), pattern=None)
        q, k = q[:, :, [0, 2]], k[:, :, [0, 2]]
        mixed = mixed_attention(q, k, v, **LAYER, pattern=pattern, backend=backend)
        static = mixed_attention(None, None, v[:, :, :2], live_heads=(), static_heads=(0, 1), pattern=pattern)
        dense = dense_attention(q, k, v, **LAYER, p_STT=torch.rand(2, T, T))
    assert live.dtype == mixed.dtype == static.dtype == dense.dtype == torch.bfloat16
    cast = [x.bfloat16() for x in (q, k, v)]
    expected = mixed_attention(*cast, **LAYER, pattern=pattern, backend=backend)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backend", [*PATHS, "naive"])
def test_autocast_changes_no_number_inside_a_path(backend: str) -> None:
    pattern = prepare_pattern(*make_families(("uniform", "uniform"), T))
    (v,) = values(2)
    expected = static_mix(v, pattern, backend=backend)
    p_HTT = torch.rand(2, T, T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(static_mix(v, pattern, backend=backend), expected)
        mixed = dense_mix(v, p_HTT)
        by_definition = static_mix_naive(v, pattern.alpha_HT, pattern.rho_HT)
    torch.testing.assert_close(by_definition, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(mixed, dense_mix(v, p_HTT))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_autocast_changes_no_statistics(num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        expected = attention_stats(*values(2, 2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(attention_stats(*values(2, 2)).variance_H, expected.variance_H)
    finally:
        torch.set_num_threads(before)


def test_mixed_dtypes_are_refused_by_name() -> None:
    pattern = prepare_pattern(*make_families(("power1", "local"), T))
    q, k, v = values(2, 2, 4)
    with pytest.raises(ValueError, match=r"q, k and v must have one dtype, but have torch.bfloat16, torch.float32"):
        mixed_attention(q, k, v.bfloat16(), **LAYER, pattern=pattern)


@pytest.mark.parametrize("path", PATHS)
def test_cpu_paths_refuse_values_on_a_gpu(path: str) -> None:
    pattern = prepare_pattern(*make_families(("uniform",), T))
    with FakeTensorMode(allow_non_fake_inputs=True):
        v = torch.empty(1, T, 1, 8, device="cuda")
    with pytest.raises(ValueError, match=f"'{path}' needs values on 'cpu', but they are on 'cuda"):
        static_mix(v, pattern, backend=path)
    # the operator itself refuses too: it is what a compiled graph calls
    with pytest.raises(ValueError, match=f"'{path}' needs values on 'cpu', but they are on 'cuda"):
        torch.ops.saf_titan.static_mix(v, *pattern, None, False, path)


def test_a_layer_keeps_its_pattern_when_it_is_cast() -> None:
    from saf_titan.layers.attention import MixedAttention

    layer = MixedAttention(MixedAttention.Config(num_heads=4))
    pattern = prepare_pattern(*make_families(("sink24-local", "power1"), T))
    layer.set_static((1, 3), pattern)
    q, k, v = values(2, 2, 4, dtype=torch.float16)
    expected = layer(q, k, v)
    assert expected.isfinite().all()
    model = nn.Sequential(layer)
    for cast in (model.half, model.bfloat16, model.double):
        cast()
        assert torch.equal(layer(q, k, v), expected)
