"""Freezes are read from their files, and a fitted pattern is pooled exactly as the mean attention beside it."""

import dataclasses
from pathlib import Path

import pytest
import torch

from saf_titan.ops.attention_stats import attention_stats
from saf_titan.report.event import pooled_pattern, read_events
from saf_titan.report.run_log import read_run
from saf_titan.saf.fit.pattern import CompactPattern, DensePattern
from saf_titan.saf.plan.plan import StaticHead
from tests.report.runs import write_frozen_run


def static_head(alpha_T: torch.Tensor, rho_T: torch.Tensor) -> StaticHead:
    return StaticHead(0, 0, CompactPattern(alpha_T.float(), rho_T.float()), score=0.0, fit_kl=0.0, rank=0, step=1)


@pytest.mark.parametrize(("T", "num_blocks"), [(1, 1), (7, 7), (40, 8), (41, 8), (64, 64), (130, 64)])
def test_pooling_by_definition(T: int, num_blocks: int) -> None:
    generator = torch.Generator().manual_seed(T)
    alpha_T, rho_T = torch.randn(2, T, generator=generator).float()
    dense_TT = torch.full((T, T), -torch.inf, dtype=torch.float64)
    for i in range(T):
        for j in range(i + 1):
            dense_TT[i, j] = alpha_T[j].double() + rho_T[i - j].double()
    dense_TT = dense_TT.softmax(-1)
    blocks = [[t for t in range(T) if t * num_blocks // T == p] for p in range(num_blocks)]
    expected_PP = torch.stack([torch.stack([dense_TT[r][:, c].sum(1).mean() for c in blocks]) for r in blocks])
    torch.testing.assert_close(pooled_pattern(static_head(alpha_T, rho_T), num_blocks), expected_PP, rtol=0, atol=1e-12)


def test_the_same_pooling_as_the_mean_attention() -> None:
    # a head that ignores its input: scores are alpha[j] through a constant query
    T, D = 50, 4
    alpha_T = torch.linspace(-2, 1, T)
    q_BTHD = torch.zeros(2, T, 1, D)
    q_BTHD[..., 0] = 1
    k_BTHD = torch.zeros(2, T, 1, D)
    k_BTHD[..., 0] = alpha_T[None, :, None]
    mean_PP = attention_stats(q_BTHD, k_BTHD, scale=1.0, map_size=16).mean_map_HPP[0]
    pooled_PP = pooled_pattern(static_head(alpha_T, torch.zeros(T)), 16)
    torch.testing.assert_close(pooled_PP, mean_PP, rtol=0, atol=1e-6)


def test_the_event_of_a_run(tmp_path: Path) -> None:
    (event,) = read_events(read_run(write_frozen_run(tmp_path / "run")))
    assert event.step == 60
    assert event.problem == ""
    assert [head.rank for head in event.new_heads] == sorted(head.rank for head in event.new_heads)
    assert len(event.new_heads) == 4
    assert event.num_model_heads == 8


@pytest.mark.parametrize("name", ["plan", "stats"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_a_damaged_file_becomes_a_problem(tmp_path: Path, name: str, damage: str) -> None:
    folder = write_frozen_run(tmp_path / "run")
    file = folder / "saf" / "step-000060" / f"{name}.safetensors"
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        half = len(content) // 2
        flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
        file.write_bytes({"empty": b"", "cut": content[:half], "flipped": flipped}[damage])
    (event,) = read_events(read_run(folder))
    assert file.name in event.problem
    assert (event.plan is None) == (name == "plan")
    assert (event.calibration is None) == (name == "stats")


def test_a_dense_pattern_is_pooled_itself() -> None:
    T = 40
    head = static_head(torch.linspace(-2, 1, T), torch.zeros(T))
    p_TT = head.pattern.rows(0, T).float()
    dense = dataclasses.replace(head, pattern=DensePattern(p_TT, CompactPattern(torch.zeros(T), torch.zeros(T))))
    torch.testing.assert_close(pooled_pattern(dense, 8), pooled_pattern(head, 8), rtol=1e-5, atol=1e-6)
