"""Compile every Triton kernel for sm_80, sm_90 and sm_100 without a GPU and tabulate what the assembler reports.

    python scripts/bench/ahead_of_time.py [--out kernels.json] [--arch 90 | --device] [--dtypes bf16]

The table has, for each kernel and configuration, the registers, the bytes spilled and the shared memory. It also has
the instructions of two innermost matrix loops: that with the fewest exponentials (the loop of the static heads, if the
kernel has one) and that with the most. The assembler and disassembler come with the triton wheel, or from the CUDA
toolkit if a build of triton has none.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from saf_titan.ops.mixed_attention.fused_backward import mixed_bwd_dkdv_kernel, mixed_bwd_dq_kernel
from saf_titan.ops.mixed_attention.fused_forward import mixed_fwd_kernel
from saf_titan.ops.static_mix.triton import PRESCALE_ROWS, prescale_kernel, toeplitz_mm_kernel
from saf_titan.ops.tiles import (
    STRIP_COPIES,
    STRIP_PAD,
    TOEPLITZ_TILES,
    TOEPLITZ_TILES_FP32,
    Tiles,
    dot_precision,
    forward_tiles,
    head_tiles,
    key_tiles,
    padded_head_dim,
    query_tiles,
    static_dtype,
)

TOOLS = Path(nvidia.__file__).parent / "bin"
ARCHITECTURES = (80, 90, 100)
SHARED_LIMIT = {80: 166_912, 90: 232_448, 100: 232_448}
SMALLEST_SHARED_LIMIT = 101_376
HEAD_DIMS = (64, 96, 128)
# query heads that share a kv head
GROUPS = (1, 4)
SHORT_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
DTYPES = tuple(SHORT_NAMES)

# types of the arguments that point to something other than queries, keys, values and their gradients
POINTERS = {
    "scale": "*fp32", "inv_z": "*fp32", "scale_static": "*fp32", "lse": "*fp32", "delta": "*fp32", "slot": "*i64",
    "k_index": "*i64", "kv_index": "*i64", "live": "*i64", "reach": "*i32", "blocks": "*i32",
}  # fmt: skip
VALUES = {"q", "k", "v", "y", "x", "dy", "dq", "dk", "dv"}
STATIC_VALUES = {"xs", "dys", "strip"}
FLOATS = {"scale_log2"}
# sizes and strides that are multiples of 16 in every launch, or whenever the head dim is
DIVISIBLE = {"rows", "columns", "L", "X", "stride_qt", "stride_kt", "stride_vt", "stride_yt", "stride_t", "stride_qb",
             "stride_kb", "stride_vb", "stride_yb", "stride_b", "stride_qh", "stride_kh", "stride_vh", "stride_yh",
             "stride_k"}  # fmt: skip
ONES = {"stride_qd", "stride_kd", "stride_vd", "stride_yd", "stride_d"}


class Case(NamedTuple):
    """One kernel in one configuration."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    tiles: Tiles
    dtype: torch.dtype
    is_packed: bool = False


class Report(NamedTuple):
    """What the assembler and the disassembler show of a case."""

    kernel: str
    arch: int
    configuration: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    static_loop: dict[str, int]
    live_loop: dict[str, int]


def cases(arch: int) -> Iterator[Case]:
    """Yield every kernel in every configuration that `tiles.py` may choose on `arch`; packed documents in bf16 only."""
    for case in _without_documents(arch):
        yield case
        if "blocks" in case.kernel.arg_names and case.dtype == torch.bfloat16:
            yield case._replace(name=case.name + "_packed", is_packed=True)


def _without_documents(arch: int) -> Iterator[Case]:
    limit = SHARED_LIMIT.get(arch, SMALLEST_SHARED_LIMIT)
    for dtype in DTYPES:
        precision = {"PRECISION": dot_precision(dtype)}
        toeplitz = TOEPLITZ_TILES if static_dtype(dtype).itemsize == 2 else TOEPLITZ_TILES_FP32
        for tiles in toeplitz:
            if tiles.shared_bytes(static_dtype(dtype).itemsize) <= limit:
                for transpose in (False, True):
                    constants = {"D": 64, "BM": tiles.rows, "BN": tiles.columns, "BK": tiles.depth, "PAD": STRIP_PAD,
                                 "COPIES": STRIP_COPIES, "TRANSPOSE": transpose} | precision  # fmt: skip
                    name = "toeplitz_mm" + "_transpose" * transpose
                    yield Case(name, toeplitz_mm_kernel, constants, tiles, dtype)
        for D in HEAD_DIMS:
            DL, DE = head_tiles(D)
            head = {"D": D, "DL": DL, "DE": DE} | precision
            launches = [
                (
                    "mixed_fwd",
                    mixed_fwd_kernel,
                    {"PAD": STRIP_PAD, "COPIES": STRIP_COPIES},
                    forward_tiles(D, dtype, limit),
                )
            ]
            for group in GROUPS:
                name = "mixed_bwd_dkdv" + f"_group{group}" * (group > 1)
                constants = {"PAD": STRIP_PAD, "COPIES": STRIP_COPIES, "GROUP": group}
                launches.append((name, mixed_bwd_dkdv_kernel, constants, key_tiles(D, group, dtype, limit)))
            launches.append(("mixed_bwd_dq", mixed_bwd_dq_kernel, {}, query_tiles(D, dtype, limit)))
            for name, kernel, constants, tiles in launches:
                yield Case(name, kernel, head | constants | {"BM": tiles.rows, "BN": tiles.columns}, tiles, dtype)
            width = padded_head_dim(D)
            constants = {"D": D, "BN": width, "BT": PRESCALE_ROWS}
            yield Case("prescale", prescale_kernel, constants, Tiles(PRESCALE_ROWS, width, 0, 4, 3), dtype)


def compile_case(case: Case, arch: int) -> Any:
    """Return the compiled kernel of a case; needs no device and no driver."""
    names = case.kernel.arg_names
    # as in a launch, strides of 1 are constants for the compiler
    constants = case.constants | {name: 1 for name in names if name in ONES}
    if "blocks" in names and not case.is_packed:
        constants["blocks"] = None
    signature = {name: "constexpr" if name in constants else _argument_type(name, case) for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name not in constants and (signature[name].startswith("*") or name in DIVISIBLE)
    }
    source = ASTSource(
        fn=case.kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    options = {"num_warps": case.tiles.num_warps, "num_stages": case.tiles.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def report(case: Case, arch: int) -> Report:
    """Compile and disassemble one case and return its report."""
    compiled = compile_case(case, arch)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        code = _run("nvdisasm", "-c", cubin.name)
        usage = _run("cuobjdump", "-res-usage", cubin.name)
    loops = [count(loop) for loop in matrix_loops(code)]
    loops.sort(key=lambda loop: loop["exponential"])
    return Report(
        kernel=case.name,
        arch=arch,
        configuration=_configuration(case),
        registers=_field("REG", usage),
        spilled_bytes=_field("STACK", usage),
        shared_bytes=compiled.metadata.shared,
        static_loop=loops[0] if loops else {},
        live_loop=loops[-1] if loops else {},
    )


def matrix_loops(code: str) -> list[list[str]]:
    """Return the innermost loops of a disassembly that have a matrix instruction, each as a list of opcodes.

    A loop is the code between a label and a branch back to it.
    """
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, int]] = []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(opcodes)
        if instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);", line):
            target = re.search(r"\((\.L_x_\d+)\)", instruction[2])
            if instruction[1].startswith("BRA") and target and target[1] in labels:
                jumps.append((labels[target[1]], len(opcodes)))
            opcodes.append(instruction[1])
    matrix = [jump for jump in jumps if any(_is_matrix(code) for code in opcodes[jump[0] : jump[1]])]
    innermost = [a for a in matrix if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in matrix)]
    return [opcodes[start : stop + 1] for start, stop in innermost]


def count(opcodes: list[str]) -> dict[str, int]:
    """Count the instructions of one loop by kind."""
    kinds = Counter(_kind(opcode) for opcode in opcodes)
    keys = ("matrix", "exponential", "fp32", "convert", "copy", "spill")
    return {"total": len(opcodes), **{key: kinds[key] for key in keys}}


def table(reports: list[Report]) -> str:
    """Return the reports as a Markdown table."""
    lines = [
        "| kernel | sm | configuration | registers | spilled B | shared KiB "
        "| static loop: instr / matrix / EX2 / fp32 / spill | live loop: instr / matrix / EX2 / fp32 / spill |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in reports:
        loops = " | ".join(_loop_cell(loop) for loop in (r.static_loop, r.live_loop))
        lines.append(
            f"| {r.kernel} | {r.arch} | {r.configuration} | {r.registers} | {r.spilled_bytes} "
            f"| {r.shared_bytes / 1024:.0f} | {loops} |"
        )
    return "\n".join(lines)


def _loop_cell(loop: dict[str, int]) -> str:
    return " / ".join(str(loop[key]) for key in ("total", "matrix", "exponential", "fp32", "spill")) if loop else "-"


def _argument_type(name: str, case: Case) -> str:
    if name == "scale" and "prescale" not in case.name and "toeplitz" not in case.name:
        return "fp32"
    if name in FLOATS:
        return "fp32"
    dtype = case.dtype if name in VALUES else static_dtype(case.dtype) if name in STATIC_VALUES else None
    return POINTERS.get(name) or ("i32" if dtype is None else f"*{SHORT_NAMES[dtype]}")


def _configuration(case: Case) -> str:
    t = case.tiles
    shape = f"{t.rows}x{t.columns}x{t.depth} w{t.num_warps} s{t.num_stages}"
    return f"{SHORT_NAMES[case.dtype]} D{case.constants['D']} {shape}"


def _is_matrix(opcode: str) -> bool:
    return re.match(r"(HGMMA|HMMA|UTCHMMA|UTCMMA|UTC\w*MMA)", opcode) is not None


def _kind(opcode: str) -> str:
    base = opcode.split(".")[0]
    if _is_matrix(opcode):
        return "matrix"
    if base == "MUFU":
        return "exponential" if "EX2" in opcode else "other"
    if base in ("FADD", "FMUL", "FFMA", "FMNMX", "FSETP", "FSEL", "FADD2", "FMUL2", "FFMA2", "FMNMX3"):
        return "fp32"
    if base in ("F2FP", "F2F"):
        return "convert"
    if base in ("LDGSTS", "LDG", "UBLKCP", "UTMALDG"):
        return "copy"
    return "spill" if base in ("STL", "LDL") else "other"


def _field(name: str, usage: str) -> int:
    return max(int(value) for value in re.findall(rf"{name}:(\d+)", usage))


def _run(tool: str, *arguments: str) -> str:
    command = [TOOLS / tool if (TOOLS / tool).exists() else tool, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print the table and, if asked, write the reports as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the reports as JSON")
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHITECTURES, help="compute capabilities")
    parser.add_argument("--dtypes", nargs="+", choices=SHORT_NAMES.values(), default=[*SHORT_NAMES.values()])
    parser.add_argument("--device", action="store_true", help="only the capability of the card in this machine")
    arguments = parser.parse_args()
    if arguments.device:
        major, minor = torch.cuda.get_device_capability()
        arguments.arch = [10 * major + minor]
    reports = [
        report(case, arch)
        for arch in arguments.arch
        for case in cases(arch)
        if SHORT_NAMES[case.dtype] in arguments.dtypes
    ]
    print(f"\n## Kernels as assembled, triton {triton.__version__}\n\n{table(reports)}")
    if arguments.out:
        arguments.out.write_text(json.dumps([r._asdict() for r in reports], indent=1) + "\n")


if __name__ == "__main__":
    main()
