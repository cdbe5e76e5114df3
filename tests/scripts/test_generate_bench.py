"""The benchmarks of generation: what they print, on a tiny model."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from saf_titan.generate.attention import CachedAttention
from tests.generate.run_folder import T, half_static, write_run, write_step

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.import_module("generate")
    shape = dataclasses.replace(
        module.SHAPES["gpt"]["124m"], num_layers=2, num_heads=4, num_kv_heads=4, dim=32, head_dim=8, vocab_size=64
    )
    monkeypatch.setitem(module.SHAPES["gpt"], "124m", shape)
    monkeypatch.setitem(module.LAYERS, 1, 2)
    return module


def test_a_cell_of_the_table(bench: ModuleType) -> None:
    rows = [row.strip("| ").split(" | ") for row in bench.measure("float32", 1, 256)]
    assert [row[4] for row in rows] == ["none", "25 %", "50 %", "50 %, states"]
    shares = [float(row[-1].removesuffix(" %")) for row in rows]
    # keys of static heads are gone; sums of 32 positions ahead of 292 are there, or a state in place of the values
    for found, expected in zip(shares, [100, 87.5 + 100 * 32 / 292 / 8, 75 + 100 * 32 / 292 / 4], strict=False):
        assert found == pytest.approx(expected, abs=0.06)
    assert 50 < shares[3] < shares[2]


def test_nothing_is_timed_where_decoding_is_wrong(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    step = CachedAttention._step
    monkeypatch.setattr(CachedAttention, "_step", lambda self, *qkv: step(self, *qkv) + 0.01)
    with pytest.raises(SystemExit, match="nothing was timed"):
        bench.check(bench.build(torch.float32, 2, 100, 0.5), torch.float32)


def test_losses_beyond_the_length_of_training(bench: ModuleType, tmp_path: Path) -> None:
    beyond = importlib.import_module("generate_beyond")
    folder = write_run(tmp_path)
    write_step(folder, 1, half_static())
    first, second = beyond.losses(folder, 2, 4)
    [alone] = beyond.losses(folder, 1, 4)
    assert first != second
    # other windows of the same random text
    assert abs(first - alone) < 1
    with pytest.raises(SystemExit, match="held-out tokens, too few"):
        beyond.losses(folder, 2, 300 // T)
