"""The benchmark runner: no figure without passing tests, alternatives in turns, shares of the ceiling."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))
import gpu_correctness
import registry
import run
import timing
from model import GPT_1B, Decoder, Size, Update, place_heads, scaled, spread_heads

from saf_titan.config import SHAPES
from saf_titan.config.own_sections import ModelSection
from saf_titan.models import model_spec
from saf_titan.ops import mixed_attention

TINY = Size(layers=2, width=32, heads=4, vocabulary=128)
CPU = torch.device("cpu")


def test_nothing_is_timed_while_tests_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(*_: object) -> None:
        raise AssertionError("timed in spite of failing tests")

    monkeypatch.setattr(run, "tests_pass", lambda tests: False)
    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["run.py", "static_mix", "--suite", "cpu-quick"])
    assert run.main() == 1
    assert capsys.readouterr().out == ""


def test_a_bound_that_saves_nothing_has_no_share() -> None:
    half, whole = (timing.Timing(seconds, seconds, 0.0, 1, None) for seconds in (1.0, 2.0))
    assert run._share(whole, half, None) is None
    assert run._share(whole, half, half) == 1
    assert run._share(whole, half, whole) is None
    assert run._share(half, half, whole) is None


def test_the_gate_runs_the_tests(tmp_path: Path) -> None:
    for name, body in (("pass", "True"), ("fail", "False")):
        (tmp_path / f"test_{name}.py").write_text(f"def test_it() -> None:\n    assert {body}\n")
    assert run.tests_pass((str(tmp_path / "test_pass.py"),))
    assert not run.tests_pass((str(tmp_path / "test_fail.py"),))


def test_on_a_gpu_the_records_of_the_back_ends_are_the_gate(tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    gates = []
    assert not run.is_checked(registry.BENCHMARKS[0], path)
    for records in ([], [("split", True)], [("split", True), ("fused", False)], [("split", True), ("fused", True)]):
        path.write_text(json.dumps([{"case": {"backend": backend}, "ok": ok} for backend, ok in records]))
        gates.append([run.is_checked(benchmark, path) for benchmark in registry.BENCHMARKS])
    closed, split = [False] * 4, [True, False, False, True]
    assert gates == [closed, [True] * 4, split, [True] * 4]


def test_a_kernel_that_cannot_run_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def attend(*qkv: Tensor, backend: str, **options: Any) -> Tensor:
        if backend == "fused":
            raise RuntimeError("does not compile\nand more")
        return mixed_attention(*qkv, backend=backend, **options)

    out = tmp_path / "check.json"
    monkeypatch.setattr(gpu_correctness, "mixed_attention", attend)
    monkeypatch.setattr(gpu_correctness, "LAYERS", gpu_correctness.LAYERS[:2])
    monkeypatch.setattr(gpu_correctness, "FEW_LAYERS", gpu_correctness.FEW_LAYERS[1:])
    monkeypatch.setattr(sys, "argv", ["gpu_correctness.py", "--device", "cpu", "--longest", "128", "--out", str(out)])
    assert gpu_correctness.main() == 1
    records = json.loads(out.read_text())
    assert [record["ok"] for record in records] == [True] * 4 + [False] * 4
    assert "RuntimeError: does not compile |" in capsys.readouterr().out


def test_alternatives_take_turns_and_change_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_repeats", lambda run, now: 1)
    monkeypatch.setattr(timing, "MIN_SECONDS", 0.0)
    order: list[str] = []
    timings = timing.time_interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, CPU, rounds=4)
    assert "".join(order) == "abbaabba"
    assert timings["a"].runs == 4


def test_share_of_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"ordinary": 10.0, "25% static": 8.5, "25% ceiling": 8.0}
    timings = {name: timing.Timing(s, s, 0.0, 1, None) for name, s in seconds.items()}
    monkeypatch.setattr(run, "time_interleaved", lambda *_: timings)
    benchmark = registry.Benchmark("update", (), (), {}, lambda shape, device: {}, registry.CEILINGS)
    record = run.measure(benchmark, {"T": 4}, CPU, 1, "wall")
    assert [row["of_ceiling"] for row in record["rows"]] == [None, pytest.approx(0.75), None]
    assert record["rows"][1]["ratio"] == pytest.approx(10 / 8.5)


def test_a_placement_of_static_heads_can_be_asked_for() -> None:
    update = next(benchmark for benchmark in registry.BENCHMARKS if benchmark.name == "update")
    usual, early = (run.shapes_of(update, "gpu", placement) for placement in (None, "early"))
    assert usual == list(update.shapes["gpu"])
    assert {shape["placement"] for shape in early} == {"early"}
    # shapes that differ by their placement alone are one
    assert len(early) < len(usual)
    layer = next(benchmark for benchmark in registry.BENCHMARKS if benchmark.name == "layer")
    assert run.shapes_of(layer, "gpu", "early") == list(layer.shapes["gpu"])


def test_the_prefill_grid_is_the_published_one() -> None:
    prefill = next(benchmark for benchmark in registry.BENCHMARKS if benchmark.name == "prefill")
    cells = {(shape["B"], shape["T"]) for shape in prefill.shapes["gpu"]}
    assert cells == {(B, 512 * 2**k) for B in (1, 64) for k in range(6)}


def test_every_benchmark_builds_what_it_says() -> None:
    shape = {"B": 1, "T": 16, "D": 8, "H": 4, "dtype": "float32", "size": TINY, "layers": 1, "shares": (0.25,)}
    for benchmark in registry.BENCHMARKS:
        runs = benchmark.build(shape | {"attention": "flash"}, CPU)
        assert len(runs) >= 2
        for alternative in runs.values():
            alternative()


def test_decoders_differ_in_their_attention_alone() -> None:
    tokens = torch.randint(TINY.vocabulary, (1, 16), generator=torch.Generator().manual_seed(0))
    losses, shapes = {}, {}
    for share in (0.0, 0.5):
        torch.manual_seed(0)
        model = Decoder(TINY, 16, share)
        shapes[share] = [parameter.shape for parameter in model.parameters()]
        update = Update(model, tokens, low_precision=False)
        losses[share] = [float(update()) for _ in range(3)]
        assert losses[share][2] < losses[share][0]
    assert losses[0.0][0] != losses[0.5][0]
    assert shapes[0.0] == shapes[0.5]


def test_sizes() -> None:
    assert scaled(Size(12, 768, 12, 50_304), 2) == Size(2, 768, 12, 8384)
    assert spread_heads(12, 0.25) == (0, 4, 8)
    assert spread_heads(12, 0.0) == ()


def test_early_placement_puts_two_thirds_into_the_first_third_of_the_layers() -> None:
    for size, share in (
        (Size(12, 768, 12, 64), 0.25),
        (GPT_1B, 0.25),
        (Size(6, 96, 4, 64), 0.5),
        (Size(1, 8, 2, 64), 0.5),
    ):
        static = place_heads(size, share, "early")
        assert len(static) == size.layers
        assert sum(map(len, static)) == round(size.layers * size.heads * share)
        assert all(len(set(heads)) == len(heads) <= size.heads for heads in static)
        first = max(1, round(size.layers / 3))
        if size.layers > 1:
            early = sum(map(len, static[:first]))
            assert early == min(round(2 * sum(map(len, static)) / 3), first * size.heads)
    # at half of the heads the first layers are static as a whole, which must run too
    model = Decoder(Size(6, 32, 4, 64), 16, 0.5, placement="early")
    assert len(model.blocks[0].attention.static_heads) == 4
    tokens = torch.arange(16).unsqueeze(0)
    assert float(Update(model, tokens, low_precision=False)()) > 0
    free = Decoder(Size(6, 32, 4, 64), 16, 0.5, placement="early", free_mixing=True)
    assert Update(free, tokens, low_precision=False).prefill().shape == (1, 16, 32)


@pytest.mark.parametrize("low_precision", [False, True], ids=["float32", "bfloat16"])
def test_it_is_the_model_of_the_product(low_precision: bool) -> None:
    model = Decoder(TINY, 16)
    spec = model_spec(
        ModelSection(flavor="debug"),
        replace(SHAPES["gpt"]["debug"], num_layers=2, num_heads=4, num_kv_heads=4, head_dim=8, dim=32, vocab_size=128),
        max_seq_len=16,
        autocast=low_precision,
    )
    product = spec.model.build()
    names = {"tokens": "lm_head", "mlp_norm": "ffn_norm", "up": "feed_forward.w1", "down": "feed_forward.w2"}
    names |= {"blocks": "layers"} | {name: f"qkv_linear.{name}" for name in ("wq", "wk", "wv")}
    weights = {".".join(names.get(part, part) for part in n.split(".")): p for n, p in model.named_parameters()}
    own = dict(product.named_parameters())
    own.setdefault("lm_head.weight", product.lm_head.weight)
    assert {name for name in own if not name.startswith("tok_embeddings")} == set(weights)
    with torch.no_grad():
        for name, weight in weights.items():
            own[name].copy_(weight)
    tokens = torch.randint(TINY.vocabulary, (2, 16), generator=torch.Generator().manual_seed(0))
    logits_BTV = product(tokens)
    expected = torch.nn.functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
    expected.backward()
    with torch.autocast("cpu", torch.bfloat16, enabled=low_precision):
        loss = model(tokens)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
    for name, weight in weights.items():
        torch.testing.assert_close(weight.grad, own[name].grad, rtol=1e-4, atol=1e-6)
