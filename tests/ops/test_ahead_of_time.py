"""Kernels compiled for real cards on a machine without one: what the assembler made of the static loops."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))
import ahead_of_time

from saf_titan.ops.tiles import TOEPLITZ_TILES


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def find_case(name: str, arch: int, dtype: torch.dtype = torch.bfloat16) -> ahead_of_time.Case:
    """The first configuration of a kernel on an architecture."""
    return next(case for case in ahead_of_time.cases(arch) if case.name == name and case.dtype == dtype)


@cache
def compile_and_report(name: str, arch: int, dtype: torch.dtype = torch.bfloat16) -> ahead_of_time.Report:
    """What the assembler made of that configuration; several tests look at the same one."""
    return ahead_of_time.report(find_case(name, arch, dtype), arch)


@pytest.mark.parametrize("arch", ahead_of_time.ARCHITECTURES)
def test_the_static_product_is_matrix_instructions_and_copies(arch: int) -> None:
    case = find_case("toeplitz_mm", arch)
    assert case.tiles == TOEPLITZ_TILES[0] or arch == 80
    report = compile_and_report("toeplitz_mm", arch)
    assert report.static_loop["matrix"] > 0
    assert report.static_loop["copy"] > 0
    assert report.static_loop["exponential"] == report.static_loop["fp32"] == report.static_loop["spill"] == 0
    assert report.spilled_bytes == 0


@pytest.mark.parametrize("name", ["mixed_fwd", "mixed_bwd_dkdv", "mixed_fwd_packed", "mixed_bwd_dkdv_packed"])
def test_static_heads_of_a_fused_kernel_compute_no_exponential(name: str) -> None:
    report = compile_and_report(name, 90)
    assert report.live_loop["exponential"] > 0
    assert report.static_loop["exponential"] == report.static_loop["fp32"] == report.static_loop["spill"] == 0
    assert report.spilled_bytes == 0


@pytest.mark.parametrize("arch", [80, 90])
def test_loops_over_grouped_heads_do_not_spill(arch: int) -> None:
    report = compile_and_report("mixed_bwd_dkdv_group4", arch)
    assert report.static_loop["spill"] == report.live_loop["spill"] == 0


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("name", ["mixed_fwd", "mixed_bwd_dkdv", "mixed_bwd_dq"])
def test_no_warp_repeats_the_work_of_another(name: str, arch: int) -> None:
    # more warps than a tile has rows of matrix instructions compute the same probabilities
    case = find_case(name, arch)
    exponentials = compile_and_report(name, arch).live_loop["exponential"] * 32 * case.tiles.num_warps
    probabilities = case.tiles.rows * case.tiles.columns
    # the forward has two more a row and thread, for the maximum
    assert probabilities <= exponentials < 1.1 * probabilities


@pytest.mark.parametrize(
    "name", ["toeplitz_mm", "mixed_fwd", "mixed_bwd_dkdv", "mixed_bwd_dkdv_group4", "mixed_bwd_dq"]
)
def test_exact_products_keep_to_their_registers(name: str) -> None:
    assert compile_and_report(name, 90, torch.float32).spilled_bytes <= 32
