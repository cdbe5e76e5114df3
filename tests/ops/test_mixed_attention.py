"""`mixed_attention` against the dense definition: head orders, grouped keys, gradients, errors.

Covers ops/mixed_attention/cpu.py, ops/mixed_attention/heads.py, ops/mixed_attention/naive.py,
ops/mixed_attention/op.py, ops/mixed_attention/split.py.
"""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor
from torch.nn import functional as F

from saf_titan.ops import StaticPattern, mixed_attention, prepare_pattern, static_mix
from saf_titan.ops.mixed_attention.op import prefers_split
from tests.ops.pattern_families import make_families

NAMES = ("power1", "sink24-local", "spiky", "local", "uniform", "noisy")
T_FIT = 80

# query heads, kv heads, static heads
LAYERS = [
    pytest.param(4, 4, (1,), id="H4-one-static"),
    pytest.param(4, 4, (0, 3), id="H4-outer-static"),
    pytest.param(4, 4, (0, 1, 2, 3), id="H4-all-static"),
    pytest.param(6, 2, (0, 4), id="GQA6-2-uneven"),
    pytest.param(6, 2, (3, 4, 5), id="GQA6-2-whole-group"),
    pytest.param(6, 2, (0, 1, 2, 3, 4, 5), id="GQA6-2-all-static"),
    pytest.param(4, 1, (2,), id="MQA4"),
    pytest.param(4, 2, (), id="GQA4-2-none-static"),
]


class Layer:
    """Inputs of one attention layer, and which of them are live."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, static: tuple[int, ...], T: int, D: int = 8, B: int = 2
    ) -> None:
        torch.manual_seed(0)
        group = num_heads // num_kv_heads
        self.static = static
        self.live = tuple(h for h in range(num_heads) if h not in static)
        self.kept = sorted({h // group for h in self.live})
        self.q: Tensor | None = torch.randn(B, T, len(self.live), D, requires_grad=True) if self.live else None
        self.k: Tensor | None = torch.randn(B, T, len(self.kept), D, requires_grad=True) if self.live else None
        self.v = torch.randn(B, T, num_kv_heads, D, requires_grad=True)
        self.dy = torch.randn(B, T, num_heads, D)
        self.pattern: StaticPattern | None = None
        if static:
            self.pattern = prepare_pattern(*make_families(NAMES[: len(static)], T_FIT))

    def run(self, backend: str = "auto", **changes: object) -> list[Tensor]:
        """Output and the gradients of the inputs that are there."""
        inputs = [x for x in (self.q, self.k, self.v) if x is not None]
        retain_graph = bool(changes.pop("retain_graph", False))
        arguments = {
            "live_heads": self.live,
            "static_heads": self.static,
            "pattern": self.pattern,
            "backend": backend,
        } | changes
        y = mixed_attention(self.q, self.k, self.v, **arguments)  # type: ignore[arg-type]
        return [y, *torch.autograd.grad(y, inputs, self.dy, retain_graph=retain_graph)]


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "static"), LAYERS)
@pytest.mark.parametrize("T", [1, 63, 80])
@pytest.mark.parametrize("backend", ["auto", "split"])
def test_output_and_gradients(num_heads: int, num_kv_heads: int, static: tuple[int, ...], T: int, backend: str) -> None:
    layer = Layer(num_heads, num_kv_heads, static, T)
    for actual, expected in zip(layer.run(backend), layer.run("naive"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_the_oracle_is_attention_written_out() -> None:
    layer = Layer(3, 3, (1,), T=9)
    y = layer.run("naive")[0]
    assert layer.q is not None
    assert layer.k is not None
    for compact, head in enumerate(layer.live):
        logits = layer.q[0, :, compact] @ layer.k[0, :, compact].T / 8**0.5
        p = logits.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        torch.testing.assert_close(y[0, :, head], p @ layer.v[0, :, head])
    alpha, rho = make_families(NAMES[:1], T_FIT)
    for i in range(9):
        p = (alpha[0, : i + 1] + rho[0, : i + 1].flip(0)).softmax(0).float()
        torch.testing.assert_close(y[0, i, 1], p @ layer.v[0, : i + 1, 1])


def test_without_static_heads_it_is_torch_attention() -> None:
    layer = Layer(4, 4, (), T=40)
    assert layer.q is not None
    assert layer.k is not None
    expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (layer.q, layer.k, layer.v)), is_causal=True)
    assert torch.equal(layer.run("auto")[0], expected.transpose(1, 2))


def test_scale_is_used() -> None:
    layer = Layer(4, 4, (2,), T=30)
    for actual, expected in zip(layer.run("auto", scale=0.7), layer.run("naive", scale=0.7), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(layer.run("auto", scale=0.7)[0], layer.run("auto")[0])


@pytest.mark.parametrize("backend", ["split", "fused"])
def test_nothing_crosses_packed_documents(backend: str) -> None:
    layer = Layer(6, 2, (0, 4), T=50, B=1)
    bounds = [0, 20, 20, 23, 50]
    packed = layer.run(backend, cu_seqlens=torch.tensor(bounds))
    for actual, expected in zip(packed, layer.run("naive", cu_seqlens=torch.tensor(bounds)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert layer.q is not None
    assert layer.k is not None
    for a, b in ((0, 20), (20, 23), (23, 50)):
        alone = mixed_attention(
            *(x[:, a:b] for x in (layer.q, layer.k, layer.v)),
            live_heads=layer.live,
            static_heads=layer.static,
            pattern=layer.pattern,
        )
        torch.testing.assert_close(packed[0][:, a:b], alone)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "static"), [(6, 2, (3, 4, 5)), (4, 4, (0, 2)), (4, 4, (3,))])
@pytest.mark.parametrize("backend", ["split", "fused"])
@pytest.mark.parametrize("bounds", [None, [0, 7, 20]])
def test_keys_of_all_kv_heads_may_be_given(
    num_heads: int, num_kv_heads: int, static: tuple[int, ...], backend: str, bounds: list[int] | None
) -> None:
    layer = Layer(num_heads, num_kv_heads, static, T=20, B=1)
    documents = {} if bounds is None else {"cu_seqlens": torch.tensor(bounds)}
    compact = layer.run(backend, **documents)
    assert layer.k is not None
    spread = torch.full((1, 20, num_kv_heads, 8), torch.nan)
    spread[:, :, layer.kept] = layer.k.detach()
    layer.k = spread.requires_grad_()
    y, dq, dk, dv = layer.run(backend, **documents)
    assert dk.shape == spread.shape
    assert not dk[:, :, [h for h in range(num_kv_heads) if h not in layer.kept]].any()
    for actual, expected in zip((y, dq, dk[:, :, layer.kept], dv), compact, strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_wrong_number_of_kv_heads_is_refused() -> None:
    layer = Layer(6, 6, (1, 2), T=20)
    assert layer.k is not None
    layer.k = layer.k[:, :, :3]
    with pytest.raises(ValueError, match="k must have the 4 kv heads that have a live head, or all 6, but has 3"):
        layer.run()


def test_on_a_gpu_packed_documents_are_fused() -> None:
    on_gpu = torch.empty(1, 8, 2, 4, device="meta")
    bounds = torch.tensor([0, 8])
    assert prefers_split(on_gpu, None)
    assert not prefers_split(on_gpu.bfloat16(), bounds)
    assert prefers_split(on_gpu, bounds)
    assert not prefers_split(torch.empty(1, 8, 2, 4), None)


def test_without_rows_there_are_gradients_of_the_pattern() -> None:
    alpha, rho = (logits.requires_grad_() for logits in make_families(NAMES[:1], T_FIT))
    y = static_mix(torch.zeros(1, 0, 1, 4), prepare_pattern(alpha, rho))
    for gradient in torch.autograd.grad(y.sum(), (alpha, rho)):
        assert not gradient.any()


def test_head_numbers_may_be_tensors() -> None:
    layer = Layer(6, 2, (0, 4), T=20)
    tensors = {"live_heads": torch.tensor(layer.live), "static_heads": torch.tensor(layer.static)}
    assert torch.equal(layer.run("auto", **tensors)[0], layer.run("auto")[0])


def test_a_freeze_compiles_once_and_other_heads_of_the_same_count_do_not() -> None:
    torch._dynamo.reset()
    traced = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(mixed_attention, backend=traced, fullgraph=True)
    for static, graphs in (((1, 2), 1), ((0, 3), 1), ((0, 1, 3), 2), ((1, 2, 3), 2)):
        layer = Layer(4, 4, static, T=24)
        tensors = {"live_heads": torch.tensor(layer.live), "static_heads": torch.tensor(layer.static)}
        y = compiled(layer.q, layer.k, layer.v, pattern=layer.pattern, **tensors)
        torch.testing.assert_close(y, layer.run("naive")[0], rtol=1e-4, atol=1e-5)
        assert traced.frame_count == graphs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"live_heads": (0, 2), "static_heads": (1, 2)}, "must together be the heads 0..3, each once"),
        ({"live_heads": (3, 0, 2)}, "ascending"),
        ({"static_heads": (), "live_heads": (0, 1, 2, 3)}, "q must have the shape"),
        ({"pattern": None}, "with 1 static heads, the pattern must be given"),
        ({"backend": "fast"}, "no backend 'fast'"),
        ({"pattern": prepare_pattern(torch.zeros(2, T_FIT), torch.zeros(2, T_FIT))}, "pattern has 2 heads"),
        ({"pattern": prepare_pattern(torch.zeros(1, 7), torch.zeros(1, 7))}, "T=20 exceeds T_fit=7"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layer(4, 4, (1,), T=20).run(**changes)


def test_static_heads_do_not_take_fp64() -> None:
    layer = Layer(4, 4, (1,), T=20)
    layer.v = layer.v.detach().double().requires_grad_()
    with pytest.raises(ValueError, match=r"v must be float32, bfloat16 or float16, but is torch.float64"):
        layer.run()


def test_an_empty_batch_gives_an_empty_output() -> None:
    assert Layer(4, 4, (1,), T=20, B=0).run()[0].shape == (0, 20, 4, 8)


def test_live_heads_need_queries_and_keys() -> None:
    layer = Layer(4, 4, (1,), T=20)
    with pytest.raises(ValueError, match="with 3 live heads, q and k must both be given"):
        mixed_attention(None, None, layer.v, live_heads=layer.live, static_heads=layer.static, pattern=layer.pattern)


@pytest.mark.parametrize(
    ("static", "changes", "message"),
    [
        ((), {}, "'fused' needs live and static heads"),
        ((0, 1, 2, 3), {}, "'fused' needs live and static heads"),
    ],
)
def test_the_fused_backend_never_falls_back(static: tuple[int, ...], changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layer(4, 4, static, T=20, B=1).run("fused", **changes)


def test_gradients_of_the_pattern_pass_through_a_layer() -> None:
    layer = Layer(4, 4, (1,), T=20)
    alpha, rho = (logits.requires_grad_() for logits in make_families(NAMES[:1], T_FIT))
    layer.pattern = prepare_pattern(alpha, rho)
    gradients = []
    for backend in ("auto", "naive"):
        y = layer.run(backend, retain_graph=True)[0]
        gradients.append(torch.autograd.grad(y, (alpha, rho), layer.dy, retain_graph=True))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["split", "fused"])
def test_low_precision(dtype: torch.dtype, backend: str) -> None:
    layer = Layer(6, 2, (0, 4), T=70)
    assert layer.q is not None
    assert layer.k is not None
    layer.q, layer.k, layer.v = (x.detach().to(dtype).requires_grad_() for x in (layer.q, layer.k, layer.v))
    layer.dy = layer.dy.to(dtype)
    for actual, expected in zip(layer.run(backend), layer.run("naive"), strict=True):
        assert actual.dtype == dtype
        assert (actual.double() - expected.double()).norm() < 1e-2 * expected.double().norm()


# opcheck itself reads the gradient of the tensors it clones
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 3), (4, 2)])
def test_operator_contract(num_heads: int, num_kv_heads: int) -> None:
    layer = Layer(num_heads, num_kv_heads, (1,), T=20)
    assert layer.pattern is not None
    heads = (torch.tensor(layer.live), torch.tensor(layer.static))
    inputs = (layer.q, layer.k, layer.v, *heads, *layer.pattern, None, 0.3)
    torch.library.opcheck(torch.ops.saf_titan.mixed_attention.default, inputs)
