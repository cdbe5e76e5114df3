"""The error bounds of static mixing hold, forward and backward, on every path: families, and a search for the worst.

Covers ops/certificate.py, ops/static_mix/band.py, ops/static_mix/running_sum.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from saf_titan.ops import StaticPattern, explain, prepare_pattern
from saf_titan.ops.certificate import ERROR_LIMIT, FP32_ROUNDOFF, fft_roundings, sum_roundings
from saf_titan.ops.convolution import fft_size
from saf_titan.ops.pattern import PATHS, attention_rows
from saf_titan.ops.static_mix import compiled, op
from tests.ops.pattern_families import NAMES, make_families, make_family


def inputs(T: int, p_TT: Tensor) -> Tensor:
    """Inputs (1, T, 1, D) with a largest element of 1 that try to add up the rounding errors."""
    generator = torch.Generator().manual_seed(3)
    t = torch.arange(T)
    noise = torch.rand(T, 3, generator=generator)
    spike = torch.zeros(T, 2)
    spike[0, 0] = spike[-1, 1] = 1.0
    odd = 1 - 2 * (t % 2)[:, None]
    heaviest = p_TT[:, p_TT.sum(0).argmax()].float()[:, None]
    columns = [torch.ones(T, 1), noise, noise.sign() * odd, 2 * noise[:, :1] - 1, spike, 1 / (1 + t[:, None])]
    columns.append(heaviest / heaviest.max())
    return torch.cat([column.float() for column in columns], dim=1)[None, :, None]


def excess(alpha_T: Tensor, rho_T: Tensor, path: str, transpose: bool, T: int | None = None) -> float:
    """Measured error of a path over its bound, at the worst row and input; 0 where the bound refuses the path."""
    T = len(alpha_T) if T is None else T
    pattern = prepare_pattern(alpha_T[None], rho_T[None])
    try:
        explain(pattern, T, path)
    except ValueError:
        return 0.0
    bound = float(pattern.error_HP[0, PATHS.index(path)])
    if path.startswith("fft"):
        bound *= max(1.0, fft_roundings(T) / fft_roundings(pattern.T_fit))
    p_TT = attention_rows(alpha_T[None], rho_T[None], 0, T)[0]
    p_TT = p_TT.T if transpose else p_TT
    x = inputs(T, p_TT)
    y = torch.empty_like(x)
    op.mix_heads(x, [0], y, [0], pattern, transpose, path)
    error_TD = (y[0, :, 0].double() - p_TT @ x[0, :, 0].double()).abs()
    allowed_T1 = bound * p_TT.sum(1, keepdim=True).clamp(min=1.0)
    # channels are paired in an FFT: the largest row of a pair may have a norm of sqrt(2)
    return float((error_TD / allowed_T1).max()) / (math.sqrt(2) if path.startswith("fft") else 1.0)


DIRECTIONS = pytest.mark.parametrize("transpose", [False, True], ids=["forward", "transpose"])


@DIRECTIONS
@pytest.mark.parametrize("path", [*PATHS, "fft by torch"])
def test_bounds_hold_for_every_family(path: str, transpose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "fft by torch":
        monkeypatch.setattr(compiled, "_extension", None)
    for name in NAMES:
        # 625 has the transform with the most roundings for its length
        for T in (700, 625):
            assert excess(*make_family(name, 700), path.split()[0], transpose, T) < 1, (name, T)


@DIRECTIONS
@pytest.mark.parametrize("path", PATHS)
def test_bounds_hold_for_a_plain_sink(path: str, transpose: bool) -> None:
    t = torch.arange(2048, dtype=torch.float64)
    for height, rho in ((30.0, -t / 64), (8.0, 0 * t), (12.0, (-t / 4).clamp(min=-6))):
        assert excess(height * (t == 0), rho, path, transpose) < 1


def random_pattern(generator: torch.Generator, T: int) -> Tensor:
    """alpha and rho (2, T) out of sinks, slopes, waves, spikes and noise of random sizes."""
    t = torch.arange(T, dtype=torch.float64)

    def size(largest: float) -> float:
        return largest * float(torch.rand(1, generator=generator)) ** 3

    logits = []
    for _ in range(2):
        x = size(8) * torch.randn(T, generator=generator, dtype=torch.float64) + size(40) * (t == 0) - size(1) * t
        x += size(10) * torch.sin(t * size(3)) - size(4) * t.log1p()
        x[torch.randint(T, (3,), generator=generator)] += size(20)
        logits.append(x)
    return torch.stack(logits)


def climb(path: str, transpose: bool, T: int, seed: int) -> Iterator[float]:
    """Excesses of random patterns, and of changes of the worst one so far."""
    generator = torch.Generator().manual_seed(seed)
    worst, best = random_pattern(generator, T), 0.0
    for step in range(40):
        # ten fresh starts; then mixtures of the worst pattern and another one
        candidate = random_pattern(generator, T)
        if step >= 10:
            share = float(torch.rand(1, generator=generator))
            candidate = (1 - share) * worst + share * candidate
        found = excess(*candidate, path, transpose)
        yield found
        if found >= best:
            worst, best = candidate, found


@DIRECTIONS
@pytest.mark.parametrize("path", PATHS)
def test_no_searched_pattern_exceeds_its_bound(path: str, transpose: bool) -> None:
    found = [excess for seed, T in ((0, 96), (1, 260)) for excess in climb(path, transpose, T, seed)]
    assert max(found) < 1
    # the search must reach patterns that the path takes
    assert max(found) > 0 or path in ("band", "sum")


def test_realistic_patterns_keep_their_fast_path() -> None:
    T = 4096
    t = torch.arange(T, dtype=torch.float64)
    more = {
        "sink": (30.0 * (t == 0), -t / 64),
        "local and uniform": (0 * t, (0.5 * torch.exp(-t / 16) / 16 + 0.5 / T).log()),
    }
    alpha, rho = make_families(NAMES, T)
    alphas = torch.cat([alpha, *(a[None] for a, _ in more.values())])
    rhos = torch.cat([rho, *(r[None] for _, r in more.values())])
    paths = {
        name: choice.path for name, choice in zip((*NAMES, *more), explain(prepare_pattern(alphas, rhos)), strict=True)
    }
    slower = {"uniform": "sum", "spiky": "fft64", "swinging-columns": "fft64"}
    assert paths == {name: slower.get(name, "fft") for name in paths}


def test_roundings_are_counted_for_the_transforms_that_run() -> None:
    # 4096 = 4^6, 720 = 5 * 3 * 3 * 4 * 4: two transforms, and 20 for the rest
    assert fft_roundings(4096) == 2 * 6 * 5 + 20
    assert fft_size(700) == 720
    assert fft_roundings(700) == 2 * (14 + 9 + 9 + 5 + 5) + 20
    assert sum_roundings(16384) * FP32_ROUNDOFF < 2.1e-5 < ERROR_LIMIT


@DIRECTIONS
def test_the_log_domain_errs_by_the_rounding_of_its_logits(transpose: bool) -> None:
    # the way out for patterns beyond the range of fp32 factors has logits in fp32 and everything else in fp64
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        alpha, rho = random_pattern(generator, 128)
        pattern = prepare_pattern(alpha[None], rho[None])
        largest = max(float(x[x.isfinite()].abs().max()) for x in (pattern.alpha_HT, pattern.rho_HT))
        p = attention_rows(alpha[None], rho[None], 0, 128)[0]
        p = p.T if transpose else p
        x = inputs(128, p)
        y = torch.ops.saf_titan.static_mix(x, *pattern, None, transpose, "naive")
        error = (y[0, :, 0].double() - p @ x[0, :, 0].double()).abs() / p.sum(1, keepdim=True).clamp(min=1.0)
        assert error.max() < 5 * FP32_ROUNDOFF * (1 + largest)


def test_a_pattern_is_a_tuple_of_its_own_dtypes() -> None:
    pattern = prepare_pattern(*make_families(("power1",), 32))
    pattern.check_dtypes()
    assert isinstance(pattern, StaticPattern)
