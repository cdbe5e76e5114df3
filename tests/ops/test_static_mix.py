"""`static_mix` against the dense definition: values, gradients, layouts, torch integration.

Covers ops/convolution.py, ops/exponentials.py, ops/static_mix/compiled.py, ops/static_mix/fft.py,
ops/static_mix/naive.py, ops/static_mix/op.py, ops/static_mix/planner.py, ops/static_mix/toeplitz.py.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from rust_data._native import mix_heads as mix_heads_natively
from saf_titan.ops import explain, prepare_pattern, static_mix, static_mix_naive
from saf_titan.ops.certificate import ERROR_LIMIT
from saf_titan.ops.convolution import fft_size
from saf_titan.ops.exponentials import BAND
from saf_titan.ops.pattern import PATHS
from saf_titan.ops.static_mix import compiled, planner
from saf_titan.ops.static_mix.band import CARRY_CHUNKS, mix_head_band
from saf_titan.ops.static_mix.compiled import is_compiled
from saf_titan.ops.static_mix.fft import mix_head_fft
from saf_titan.ops.static_mix.op import mix_heads
from saf_titan.ops.static_mix.planner import BAND_MIN_LENGTH, check_backend, choose_path
from tests.ops.pattern_families import NAMES, make_families

T_FIT = 700
SOME = ("power1", "sink24-local", "spiky")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest row error over the largest row."""
    return float((actual.double() - expected).norm(dim=-1).max() / expected.norm(dim=-1).max())


def mix_both(
    names: tuple[str, ...], T: int, backend: str, dtype: torch.dtype = torch.float32, B: int = 2, D: int = 8
) -> tuple[float, float]:
    """Errors of output and gradient against the dense oracle in fp64."""
    torch.manual_seed(0)
    alpha, rho = make_families(names, T_FIT)
    v = torch.randn(B, T, len(names), D).to(dtype).requires_grad_()
    v64 = v.detach().double().requires_grad_()
    dy = torch.randn(B, T, len(names), D).to(dtype)
    y = static_mix(v, prepare_pattern(alpha, rho), backend=backend)
    expected = static_mix_naive(v64, alpha, rho)
    assert y.shape == v.shape
    assert y.dtype == dtype
    assert y.is_contiguous()
    y.backward(dy)
    expected.backward(dy.double())
    assert v.grad is not None
    assert v64.grad is not None
    return relative_error(y.detach(), expected.detach()), relative_error(v.grad, v64.grad)


@pytest.mark.parametrize("backend", ["auto", "fft64", "gemm", "naive"])
@pytest.mark.parametrize("T", [1, 2, 63, 128, 513, 700])
def test_values_and_gradients_of_every_family(backend: str, T: int) -> None:
    forward, backward = mix_both(NAMES, T, backend)
    assert forward < 5e-6
    assert backward < 5e-6


@pytest.fixture(params=["compiled", "torch"])
def fft(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who does the fp32 FFT: the extension, or torch as where it was not built."""
    assert is_compiled()
    if request.param == "torch":
        monkeypatch.setattr(compiled, "_extension", None)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("T", [1, 2, 5, 97, 128, 600, 700])
def test_values_and_gradients_of_the_fp32_fft(T: int, dtype: torch.dtype, fft: str) -> None:
    certified = tuple(name for name in NAMES if name not in ("spiky", "swinging-columns", "noisy"))
    forward, backward = mix_both(certified, T, "fft", dtype)
    limit = {torch.float32: 5e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}[dtype]
    assert forward < limit
    assert backward < limit


@pytest.mark.parametrize("D", [1, 33, 50, 128])
def test_channels_of_several_chunks_and_an_odd_one_left_over(D: int, fft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[mix_head_fft.__module__], "CHUNK_ELEMENTS", 1)
    # what is left in a buffer may not reach the next channels: one of them is far larger than the others
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(("power1",), T_FIT))
    v = torch.randn(2, T_FIT, 1, D)
    v[..., 0] *= 1e8
    y = static_mix(v, pattern, backend="fft")
    expected = static_mix_naive(v.double(), *make_families(("power1",), T_FIT))
    # the other half of the same complex number errs by a fraction of the first
    partner = 16 if fft == "compiled" else 1
    assert relative_error(y[..., :1], expected[..., :1]) < 5e-6
    assert relative_error(y, expected) < 5e-6
    for d in set(range(1, D)) - {partner}:
        assert relative_error(y[..., d : d + 1], expected[..., d : d + 1]) < 5e-6


def test_the_extension_takes_any_strides_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("power1", "sink24-local", "local")
    pattern = prepare_pattern(*make_families(names, T_FIT))
    v = torch.randn(2, T_FIT, 3, 40)
    expected = static_mix(v, pattern, backend="fft")
    wide = torch.randn(2, T_FIT, 5, 120)
    wide[:, :, 1:4, 40:80] = v
    assert torch.equal(static_mix(wide[:, :, 1:4, 40:80], pattern, backend="fft"), expected)
    for dims in ((3, 2, 1, 0), (1, 0, 2, 3), (2, 0, 1, 3)):
        strided = v.permute(dims).contiguous().permute(*(dims.index(dim) for dim in range(4)))
        assert torch.equal(static_mix(strided, pattern, backend="fft"), expected)
    assert torch.equal(static_mix(v[:1].expand(2, -1, -1, -1), pattern)[1], expected[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert torch.equal(static_mix(v, pattern, backend="fft"), expected)


def test_the_extension_takes_patterns_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = prepare_pattern(*make_families(("power1", "local", "trend"), T_FIT))
    v = torch.randn(1, T_FIT, 2, 8)
    some = type(pattern)(*(tensor[::2] for tensor in pattern))
    strided = type(pattern)(*(torch.stack([tensor, tensor], dim=-1)[..., 0] for tensor in some))
    assert not strided.scale_HT.is_contiguous()
    expected = static_mix(v, some, backend="fft")
    assert torch.equal(static_mix(v, strided, backend="fft"), expected)
    # another default dtype
    half = static_mix(v.half(), some, backend="fft")
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(static_mix(v.half(), some, backend="fft"), half)
    finally:
        torch.set_default_dtype(torch.float32)


def native_call(**changes: object) -> None:
    """The extension on one head of 8 positions, with some arguments changed."""
    ones = np.ones((1, 8), dtype=np.float32)
    arguments = {
        "x": np.ones((1, 8, 1, 4), dtype=np.float32),
        "y": np.empty((1, 8, 1, 4), dtype=np.float32),
        "heads": [(0, 0, 0)],
        "scale": ones,
        "weight": ones,
        "inv_z": ones,
        "spectra": np.zeros((1, 2, 8, 2), dtype=np.float32),
        "heavy": np.full((1, 2), 8),
        "transpose": False,
        "threads": 1,
    }
    mix_heads_natively(**arguments | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.ones((1, 8, 1, 4))}, "both of float32 or both of uint16"),
        ({"y": np.ones((1, 8, 1, 4), dtype=np.uint16)}, "both of float32 or both of uint16"),
        ({"x": np.ones((1, 8, 1, 8), dtype=np.float32)[..., ::2]}, "x has strides of"),
        ({"x": np.ones((1, 8, 1, 4), dtype=np.float32)[:, ::-1]}, "x has strides of .* positive multiples of 4"),
        ({"x": np.zeros((1, 8, 1, 4), dtype=[("a", "f4"), ("b", "u1")])["a"]}, "x has strides of .* aligned"),
        (
            {
                "y": np.lib.stride_tricks.as_strided(np.empty(32, np.float32), (2, 8, 1, 4), (0, 16, 16, 4)),
                "x": np.ones((2, 8, 1, 4), dtype=np.float32),
            },
            "elements of y overlap",
        ),
        ({"spectra": np.zeros((1, 2, 8, 1), dtype=np.float32)}, r"must be \[patterns, 2, N, 2\]"),
        ({"heads": [(1, 0, 0)]}, "no pattern 1|pattern 1"),
        ({"heads": [(0, 0, 0), (0, 0, 0)]}, "written twice"),
        ({"scale": np.ones((1, 7), dtype=np.float32)}, "does not fit"),
        *(
            ({name: np.ones((8, 1), dtype=np.float32).repeat(2, 1).T}, f"{name} is not C-contiguous: pass numpy")
            for name in ("scale", "weight", "inv_z")
        ),
        ({"heavy": np.full((2, 2), 8, order="F")}, "heavy is not C-contiguous"),
        ({"spectra": np.ones((2, 2, 8, 2), dtype=np.float32, order="F")}, "spectra is not C-contiguous"),
    ],
)
def test_the_extension_refuses_what_it_cannot_mix(changes: dict[str, object], message: str) -> None:
    native_call()
    with pytest.raises(ValueError, match=message):
        native_call(**changes)
    shared = np.ones((1, 8, 1, 4), dtype=np.float32)
    with pytest.raises((ValueError, BufferError, TypeError)):
        native_call(x=shared, y=shared)


def test_only_the_heads_asked_for_are_written() -> None:
    pattern = prepare_pattern(*make_families(("power1", "spiky"), T_FIT))
    x, y = torch.randn(1, T_FIT, 3, 8), torch.full((1, T_FIT, 4, 8), float("nan"))
    mix_heads(x, [2, 0], y, [3, 1], pattern, transpose=False)
    assert y[:, :, [0, 2]].isnan().all()
    assert torch.equal(y[:, :, [3, 1]], static_mix(x[:, :, [2, 0]].contiguous(), pattern))


SMOOTH = ("uniform", "local-floor", "power0.5", "power1", "power2", "trend")


@pytest.mark.parametrize("T", [1, 64, 65, 128, 129, 700])
def test_values_and_gradients_of_band_and_exponentials(T: int) -> None:
    forward, backward = mix_both(SMOOTH, T, "band")
    assert forward < 2e-5
    assert backward < 2e-5


@pytest.mark.parametrize("T", [1, 129, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_running_sums_are_exact_to_the_rounding_of_factors(T: int, dtype: torch.dtype) -> None:
    forward, backward = mix_both(("uniform",), T, "sum", dtype)
    roundoff = 1e-7 if dtype == torch.float32 else 2**-8
    assert forward < 2 * roundoff
    assert backward < 2 * roundoff


def test_running_sums_keep_the_columns_that_differ() -> None:
    torch.manual_seed(0)
    alpha, rho = torch.randn(1, T_FIT, dtype=torch.float64), torch.full((1, T_FIT), 3.0, dtype=torch.float64)
    pattern = prepare_pattern(alpha, rho)
    assert explain(pattern)[0].path == "sum"
    v = torch.randn(1, T_FIT, 1, 4)
    assert relative_error(static_mix(v, pattern), static_mix_naive(v.double(), alpha, rho)) < 3e-7


def test_weights_that_depend_on_the_lag_a_little_are_no_running_sum() -> None:
    rho = torch.zeros(1, T_FIT, dtype=torch.float64)
    rho[0, 0] = 1e-3
    pattern = prepare_pattern(torch.zeros(1, T_FIT), rho)
    assert explain(pattern)[0].path == "fft"
    with pytest.raises(ValueError, match="'sum' has an error bound of"):
        static_mix(torch.zeros(1, T_FIT, 1, 2), pattern, backend="sum")


def test_states_are_carried_on_from_one_block_of_chunks_to_the_next() -> None:
    # more than CARRY_CHUNKS chunks, and a number that is not whole
    T = (CARRY_CHUNKS + 3) * BAND + 17
    alpha, rho = make_families(("power1",), T)
    pattern = prepare_pattern(alpha, rho)
    v = torch.randn(1, T, 1, 2, generator=torch.Generator().manual_seed(0))
    assert relative_error(static_mix(v, pattern, backend="band"), static_mix_naive(v.double(), alpha, rho)) < 1e-5


def test_the_certificate_of_the_exponentials_bounds_their_error() -> None:
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    certified = pattern.error_HP[:, PATHS.index("band")]
    # weights that no few exponentials follow must be refused
    for name in ("noisy", "spiky", "previous-token-sink", "sink24-local"):
        assert certified[NAMES.index(name)] > ERROR_LIMIT
    x = torch.randn(1, T_FIT, len(NAMES), 8)
    for transpose in (False, True):
        exact = torch.ops.saf_titan.static_mix(x, *pattern, None, transpose, "naive")
        for h in range(len(NAMES)):
            y_BTD = torch.empty(1, T_FIT, 8)
            head = pattern.head(h, T_FIT, torch.float32)
            mix_head_band(x[:, :, h], y_BTD, head, pattern.far_H2R[h], transpose)
            measured = (y_BTD - exact[:, :, h]).norm(dim=-1).max() / x[:, :, h].norm(dim=-1).max()
            assert measured <= certified[h] + 2e-6


@pytest.mark.parametrize(("dtype", "roundoff"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
@pytest.mark.parametrize("backend", ["fft64", "gemm"])
def test_low_precision_errs_by_its_output_rounding_alone(dtype: torch.dtype, roundoff: float, backend: str) -> None:
    forward, backward = mix_both(SOME, T_FIT, backend, dtype)
    assert forward < roundoff
    assert backward < roundoff


@pytest.mark.parametrize("backend", ["auto", "gemm"])
def test_strided_values_and_gradients(backend: str) -> None:
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(SOME, T_FIT))
    base = torch.randn(2, 3, 600, 20)
    v = base.transpose(1, 2)[..., 2:18:2].requires_grad_()
    y = static_mix(v, pattern, backend=backend)
    copy = v.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    y_copy = static_mix(copy, pattern, backend=backend)
    torch.testing.assert_close(y, y_copy, rtol=0, atol=0)
    # an expanded gradient has stride 0 everywhere
    y.sum().backward()
    y_copy.sum().backward()
    torch.testing.assert_close(v.grad, copy.grad, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 5, 1, 4), (2, 0, 1, 4)])
def test_nothing_mixes_to_nothing(shape: tuple[int, ...]) -> None:
    v = torch.zeros(shape, requires_grad=True)
    y = static_mix(v, prepare_pattern(torch.zeros(1, 8), torch.zeros(1, 8)))
    assert y.shape == shape
    y.sum().backward()


def test_repeats_are_bitwise_equal() -> None:
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(NAMES, T_FIT))
    v = torch.randn(2, T_FIT, len(NAMES), 8)
    assert torch.equal(static_mix(v, pattern), static_mix(v, pattern))


def test_future_values_do_not_leak() -> None:
    torch.manual_seed(0)
    pattern = prepare_pattern(*make_families(SOME, T_FIT))
    v = torch.randn(1, T_FIT, len(SOME), 4)
    changed = v.clone()
    changed[:, 350:] = 1e4
    for backend in ("gemm", "naive"):
        before, after = (static_mix(x, pattern, backend=backend)[:, :350] for x in (v, changed))
        assert torch.equal(before, after)


def test_double_backward_is_the_forward_again() -> None:
    alpha, rho = make_families(("power1",), 40)
    pattern = prepare_pattern(alpha, rho)
    dy = torch.randn(1, 40, 1, 2, requires_grad=True)
    v = torch.randn(1, 40, 1, 2, requires_grad=True)
    (dv,) = torch.autograd.grad(static_mix(v, pattern), v, dy, create_graph=True)
    (ddy,) = torch.autograd.grad(dv, dy, v)
    torch.testing.assert_close(ddy, static_mix(v, pattern))


def test_a_longer_sequence_is_refused_with_both_lengths() -> None:
    pattern = prepare_pattern(torch.zeros(1, 8), torch.zeros(1, 8))
    with pytest.raises(ValueError, match="T=9 exceeds T_fit=8"):
        static_mix(torch.zeros(1, 9, 1, 4), pattern)


@pytest.mark.parametrize(
    ("v", "message"),
    [
        (torch.zeros(8, 1, 4), "shape"),
        (torch.zeros(1, 8, 2, 4), "v has 2 heads, but the pattern has 1"),
        (torch.zeros(1, 8, 1, 4, dtype=torch.float64), "float64"),
    ],
)
def test_values_that_do_not_fit_are_refused(v: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        static_mix(v, prepare_pattern(torch.zeros(1, 8), torch.zeros(1, 8)))


def test_a_named_backend_never_falls_back() -> None:
    pattern = prepare_pattern(*make_families(("spiky",), T_FIT))
    v = torch.zeros(1, T_FIT, 1, 2)
    message = "'fft' has an error bound of .* take auto or fft64 or gemm or naive"
    with pytest.raises(ValueError, match=message):
        static_mix(v, pattern, backend="fft")
    # the same before there are values
    with pytest.raises(ValueError, match=message):
        explain(pattern, backend="fft")
    with pytest.raises(ValueError, match="no backend 'fast'; choose one of auto, fft"):
        static_mix(v, pattern, backend="fast")


def test_a_named_backend_needs_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = prepare_pattern(torch.zeros(1, 8), torch.zeros(1, 8))
    message = "'triton' needs values on 'cuda', but they are on 'cpu'; here, take auto or fft or .* or naive$"
    with pytest.raises(ValueError, match=message):
        static_mix(torch.zeros(1, 8, 1, 4), pattern, backend="triton")
    with pytest.raises(ValueError, match=message):
        explain(pattern, backend="triton")
    for path in PATHS:
        message = f"'{path}' needs values on 'cpu', but they are on 'cuda'; here, take auto or naive or triton$"
        with pytest.raises(ValueError, match=message):
            check_backend(path, torch.device("cuda:1"))
        check_backend(path, torch.device("cpu"))
    for backend in ("auto", "naive", "triton"):
        check_backend(backend, torch.device("cuda"))
    monkeypatch.setattr(planner, "HAS_TRITON", False)
    for backend in ("auto", "triton"):
        with pytest.raises(ValueError, match=r"needs the package triton on a GPU.*; here, take naive$"):
            check_backend(backend, torch.device("cuda"))
    check_backend("naive", torch.device("cuda"))


def test_explain_says_which_path_and_why(fft: str) -> None:
    pattern = prepare_pattern(*make_families(("power1", "spiky"), T_FIT))
    assert [choice.path for choice in explain(pattern)] == ["fft", "fft64"]
    assert explain(pattern)[0].reason.startswith("compiled" if fft == "compiled" else "T=700 >= 512")
    assert "error bound of the fp32 FFT" in explain(pattern)[1].reason
    # torch's FFT is for a range of lengths, the compiled one for all
    first = {"compiled": ("fft", "fft"), "torch": ("gemm", "band")}[fft]
    assert [choice.path for choice in explain(pattern, T=100)] == [first[0], "gemm"]
    # the plan for a length needs no pattern of that length
    assert [choice.path for choice in explain(pattern, T=BAND_MIN_LENGTH)] == [first[1], "fft64"]


def test_a_certificate_that_is_nan_is_none() -> None:
    errors = dict.fromkeys(PATHS, float("nan"))
    assert choose_path(errors, T_FIT).path == "naive"
    with pytest.raises(ValueError, match="error bound of nan"):
        choose_path(errors, T_FIT, "fft")


def out_of_range_pattern(T: int) -> tuple[Tensor, Tensor]:
    """A sink that most rows cannot see, at a height that fp32 cannot hold beside the other columns."""
    alpha, rho = torch.zeros(1, T, dtype=torch.float64), torch.zeros(1, T, dtype=torch.float64)
    alpha[0, 0] = 200.0
    rho[0, T // 2 :] = -400.0
    return alpha, rho


def test_weights_beyond_fp32_take_the_log_domain() -> None:
    alpha, rho = out_of_range_pattern(600)
    pattern = prepare_pattern(alpha, rho)
    assert explain(pattern)[0].path == "naive"
    v = torch.randn(1, 600, 1, 4)
    assert relative_error(static_mix(v, pattern), static_mix_naive(v.double(), alpha, rho)) < 1e-6


def test_fft_sizes_are_even_smooth_and_tight() -> None:
    for length in range(1, 400):
        size = fft_size(length)
        candidates = (2**a * 3**b * 5**c for a in range(1, 10) for b in range(6) for c in range(4))
        assert size == min(candidate for candidate in candidates if candidate >= length)


@pytest.mark.parametrize("names", [NAMES, ("out-of-range",)], ids=["families", "out-of-range"])
@pytest.mark.parametrize("T", [1, 130])
def test_gradients_of_the_logits(names: tuple[str, ...], T: int) -> None:
    torch.manual_seed(0)
    alpha, rho = make_families(NAMES, 150) if names == NAMES else out_of_range_pattern(150)
    v, dy = torch.randn(2, 2, T, alpha.shape[0], 4).unbind(0)
    gradients = []
    for mix in (
        lambda a, r: static_mix(v, prepare_pattern(a, r)),
        lambda a, r: static_mix_naive(v.double(), a, r),
    ):
        leaves = [logits.clone().requires_grad_() for logits in (alpha, rho)]
        y = mix(*leaves)
        gradients.append(torch.autograd.grad(y, leaves, dy.to(y.dtype)))
    for actual, expected in zip(*gradients, strict=True):
        assert actual.shape == alpha.shape
        assert (actual - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1.0)


def test_gradient_of_the_logits_through_the_gradient_of_the_values() -> None:
    torch.manual_seed(0)
    alpha, rho = (logits.requires_grad_() for logits in make_families(("power1",), 20))
    v, dy = torch.randn(2, 1, 20, 1, 3).unbind(0)
    v.requires_grad_()
    gradients = []
    for y in (static_mix(v, prepare_pattern(alpha, rho)), static_mix_naive(v.double(), alpha, rho)):
        (dv,) = torch.autograd.grad(y, v, dy.to(y.dtype), create_graph=True)
        gradients.append(torch.autograd.grad(dv.square().sum(), (alpha, rho)))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_packed_documents_are_mixed_one_by_one() -> None:
    torch.manual_seed(0)
    alpha, rho = (logits.requires_grad_() for logits in make_families(SOME, 90))
    pattern = prepare_pattern(alpha, rho)
    bounds = [0, 90, 90, 91, 150]
    v = torch.randn(1, 150, len(SOME), 4, requires_grad=True)
    packed = static_mix(v, pattern, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    pieces = [static_mix(v[:, a:b], pattern) for a, b in itertools.pairwise(bounds) if a < b]
    apart = torch.cat(pieces, dim=1)
    assert torch.equal(packed, apart)
    dy = torch.randn_like(packed)
    for actual, expected in zip(
        torch.autograd.grad(packed, (v, alpha, rho), dy, retain_graph=True),
        torch.autograd.grad(apart, (v, alpha, rho), dy),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("bounds", "batch", "message"),
    [
        ([0, 8], 2, "batch of 1, but the batch is 2"),
        ([0, 5], 1, r"rise from 0 to T=8, but is \[0, 5\]"),
        ([0, 6, 4, 8], 1, "rise from 0"),
        ([8], 1, "integer tensor of shape"),
        ([0.0, 8.0], 1, "integer tensor"),
    ],
)
def test_packing_that_does_not_fit_is_refused(bounds: list[float], batch: int, message: str) -> None:
    pattern = prepare_pattern(torch.zeros(1, 8), torch.zeros(1, 8))
    with pytest.raises(ValueError, match=message):
        static_mix(torch.zeros(batch, 8, 1, 4), pattern, cu_seqlens=torch.tensor(bounds))


def test_a_packed_document_may_not_exceed_the_pattern() -> None:
    pattern = prepare_pattern(torch.zeros(1, 8), torch.zeros(1, 8))
    with pytest.raises(ValueError, match="T=9 exceeds T_fit=8"):
        static_mix(torch.zeros(1, 12, 1, 4), pattern, cu_seqlens=torch.tensor([0, 3, 12]))


# opcheck itself reads the gradient of the tensors it clones
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_operator_contract() -> None:
    pattern = prepare_pattern(*make_families(("power1", "sink16-local"), 64))
    for v in (torch.randn(2, 40, 2, 4), torch.randn(2, 2, 40, 4).transpose(1, 2)):
        arguments = (v.requires_grad_(), *pattern, None, False, "auto")
        torch.library.opcheck(torch.ops.saf_titan.static_mix.default, arguments)
