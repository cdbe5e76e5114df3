"""The kernels compiled for a real card on a machine without one."""

from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from saf_titan.ops.attention_stats.triton import row_lse_kernel, stats_kernel
from saf_titan.ops.tiles import padded_head_dim

POINTERS = {"q": "*bf16", "k": "*bf16", "lse": "*fp32", "rows": "*fp32", "columns": "*fp32", "lags": "*fp32"}


@pytest.mark.parametrize("kernel", [row_lse_kernel, stats_kernel], ids=["row_lse", "stats"])
@pytest.mark.parametrize("D", [64, 96, 128])
def test_compiles_for_sm_90(kernel: Any, D: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"D": D, "DP": padded_head_dim(D), "BLOCK": 64, "PRECISION": "tf32", "stride_qd": 1, "stride_kd": 1}
    names = kernel.arg_names
    types = POINTERS | {"scale_log2": "fp32"} | dict.fromkeys(constants, "constexpr")
    aligned = [name for name in names if name not in constants and (name in POINTERS or name.startswith("stride"))]
    source = ASTSource(
        kernel,
        signature={name: types.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert "mma" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= 232_448
