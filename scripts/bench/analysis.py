"""Measure contribution weights: their errors, their time compared with attention, and the memory for long texts.

    OMP_NUM_THREADS=1 python scripts/bench/analysis.py exact [MODEL --text FILE]
    OMP_NUM_THREADS=1 python scripts/bench/analysis.py cost [--rounds 12]
    OMP_NUM_THREADS=1 python scripts/bench/analysis.py memory

exact: the largest errors over rows in float32, divided by the sum of |c| of the row, on random layers or on every layer
of a model. cost: processor time of the eager attention forward of one layer of the 124m decoder (projections, scores,
softmax, mixing, output), and of the contribution weights from the same queries, keys and values; both take turns.
memory: the peak memory of a separate process for each length.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import multiprocessing
import statistics
from collections.abc import Iterator
from pathlib import Path

from saf_titan import compat  # noqa: F401  # isort: skip

import torch
from timing import machine_line, time_interleaved
from torch import Tensor

from saf_titan.analysis.contribution import HeadValues, Level, contribution_weights, head_values
from saf_titan.analysis.contribution_summary import summarize_contributions
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.scores import layer_values
from saf_titan.config import SHAPES
from saf_titan.config.own_sections import ModelSection
from saf_titan.fields.places import require_input_file
from saf_titan.generate.opened import open_decoder
from saf_titan.layers.attention import SAFAttention
from saf_titan.models import model_spec

LEVELS: tuple[Level, ...] = ("head", "layer")


def layer_of_124m(seq_len: int) -> SAFAttention:
    """Return the first attention layer of the 124m decoder, with random weights."""
    torch.manual_seed(0)
    config = model_spec(ModelSection(), SHAPES["gpt"]["124m"], max_seq_len=seq_len).model
    attention: SAFAttention = config.layers[0].attention.build()
    attention.init_states()
    return attention


def eager_forward(attention: SAFAttention, x_BTC: Tensor) -> Tensor:
    """Run the layer with a whole attention matrix, like the eager attention of transformers."""
    q_BTHD, k_BTHD, v_BTHD = attention.qkv_linear(x_BTC)
    q_BTHD, k_BTHD = attention.positioned(q_BTHD, k_BTHD, None)
    q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BTHD, v_BTHD))
    T = x_BTC.shape[1]
    mask = torch.full((T, T), -math.inf).triu(1)
    p_BHTT = (q @ k.mT * q.shape[-1] ** -0.5 + mask).softmax(-1)
    return attention.output((p_BHTT @ v).transpose(1, 2))


def watched_layer(attention: SAFAttention, x_BTC: Tensor) -> LayerAttention:
    """Run the layer and return its attention and values, as `watching` records them."""
    seen: list[LayerAttention] = []
    with watching([attention], lambda layer: seen.append(layer)):
        attention(x_BTC, None)
    return seen[0]


@torch.no_grad()
def cost(args: argparse.Namespace) -> None:
    print(machine_line(torch.device("cpu")))
    print("processor time of a layer in seconds, medians; in brackets as a multiple of the eager forward")
    for T in args.lengths:
        attention, x_BTC = layer_of_124m(T), torch.randn(1, T, 768)
        layer = watched_layer(attention, x_BTC)

        def weights(level: Level, layer: LayerAttention = layer) -> Tensor:
            return contribution_weights(layer.rows(), layer_values(layer), level=level).weight_BHRJ

        def summary(level: Level, layer: LayerAttention = layer) -> object:
            return summarize_contributions(layer.rows, layer_values(layer), level=level)

        runs = {"eager": lambda attention=attention, x=x_BTC: eager_forward(attention, x)}
        runs |= {f"weights, {level}": lambda level=level, weights=weights: weights(level) for level in LEVELS}
        runs |= {f"summary, {level}": lambda level=level, summary=summary: summary(level) for level in LEVELS}
        found = time_interleaved(runs, torch.device("cpu"), args.rounds, clock="cpu")
        eager = found["eager"].seconds
        cells = [f"{name} {one.seconds:.4f} ({one.seconds / eager:.2f})" for name, one in found.items()]
        print(f"T {T}: " + ", ".join(cells) + f"; {min(one.runs for one in found.values())} rounds")


def exact(args: argparse.Namespace) -> None:
    if (args.model is None) != (args.text is None):
        raise ValueError("exact measures a model on a text: give MODEL and --text FILE, or neither for random layers")
    if args.text is not None:
        require_input_file(args.text, "a UTF-8 text")
    print(machine_line(torch.device("cpu")))
    worst: dict[str, list[float]] = {}
    for p_BHTT, values in model_layers(args) if args.model else random_layers():
        for name, error in errors(p_BHTT, values).items():
            worst.setdefault(name, []).append(error)
    layers = len(next(iter(worst.values())))
    print(f"{args.model or 'random weights'}: {layers} layers; largest error / sum of |c|, and its median over layers")
    for name, values in worst.items():
        print(f"  {name:<44}{max(values):12.2e}{statistics.median(values):12.2e}")
    if not args.model:
        for level in LEVELS:
            print(
                f"  {level}: summaries of row blocks of 1 to {SHORT + 1}, {SHORT} positions: {block_error(level):12.2e}"
            )


SHORT = 96


def block_error(level: Level) -> float:
    """Return the largest difference, over all block sizes, between a summary and the same sums of the whole matrix.

    It is divided by the largest sum of |c|.
    """
    p_BHTT, values = next(random_layers())
    p_BHTT = p_BHTT[..., :SHORT, :SHORT]
    values = HeadValues(values.v_BHTM[:, :, :SHORT], values.basis_HMC, values.norm_BHT[:, :, :SHORT])
    c_BHTT = contribution_weights(p_BHTT, values, level=level).weight_BHRJ.double()
    expected_HT = c_BHTT.mean(0).sum(1)
    scale, worst = c_BHTT.abs().mean(0).sum(1).max().item(), 0.0
    for size in range(1, SHORT + 2):
        found = summarize_contributions(
            lambda start, stop: p_BHTT[:, :, start:stop, :stop], values, level=level, row_block=size
        )
        worst = max(worst, (found.weight_by_key_HT - expected_HT).abs().max().item() / scale)
        worst = max(worst, (found.sink_weight_BHT - c_BHTT[..., 0]).abs().max().item() / scale)
    return worst


def random_layers() -> Iterator[tuple[Tensor, HeadValues]]:
    """Yield attention and values of layers of several shapes, from nearly uniform attention to nearly one key."""
    for H, K, D, C, sharpness in (
        (12, 12, 64, 768, 1.0), (4, 1, 256, 640, 4.0), (16, 4, 64, 1024, 8.0), (8, 8, 16, 128, 0.1),
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(H)
        scores = sharpness * torch.randn(2, H, 256, 256, generator=generator)
        p_BHTT = scores.masked_fill(torch.ones(256, 256, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
        v_BTKD, wo_HDC = torch.randn(2, 256, K, D, generator=generator), torch.randn(H, D, C, generator=generator)
        yield p_BHTT, head_values(v_BTKD, wo_HDC)


@torch.no_grad()
def model_layers(args: argparse.Namespace) -> Iterator[tuple[Tensor, HeadValues]]:
    decoder = open_decoder(Path(args.model), length=args.length)
    assert decoder.read is not None
    found: list[tuple[Tensor, HeadValues]] = []
    with watching(decoder.attentions, lambda layer: found.append((layer.rows(), layer_values(layer)))):
        decoder.run(decoder.read(args.text, 2, args.length).tokens_NT)
    return iter(found)


def errors(p_BHTT: Tensor, values: HeadValues) -> dict[str, float]:
    """Return the largest errors in float32 by name; each is divided by the sum of |c| of its row, head or layer."""
    found: dict[str, float] = {}
    head, layer = (contribution_weights(p_BHTT, values, level=level, undefined=0.0) for level in LEVELS)
    for name, one, over in (("head", head, (3,)), ("layer", layer, (1, 3))):
        c_BHTT = one.weight_BHRJ.double()
        size = c_BHTT.abs().sum(over).clamp(min=1e-300)
        defined = one.is_defined_BGR.squeeze(1) if name == "layer" else one.is_defined_BGR
        found[f"{name}: weights sum to 1"] = (((c_BHTT.sum(over) - 1).abs() / size)[defined]).max().item()
        # multiplied as doubles, so that the error is that of the returned factors and not of this product
        factors = (one.attention_BHRJ, one.relative_magnitude_BHRJ, one.cosine_BHRJ)
        product = factors[0].double() * factors[1].double() * factors[2].double()
        error = (product - c_BHTT).abs().amax(over) / size
        found[f"{name}: product of the three factors"] = error[defined].max().item()
        wide = HeadValues(values.v_BHTM.double(), values.basis_HMC.double(), values.norm_BHT.double())
        oracle = contribution_weights(p_BHTT.double(), wide, level=name, undefined=0.0).weight_BHRJ
        found[f"{name}: weights against float64"] = ((c_BHTT - oracle).abs().amax(over) / size)[defined].max().item()
    # shares of heads by their outputs, in float64: <o_h, u> / |u|^2
    out_BHTC = values.outputs(p_BHTT).double() @ values.basis_HMC.double()
    u_BTC = out_BHTC.sum(1)
    share_BHT = torch.einsum("bhtc,btc->bht", out_BHTC, u_BTC) / u_BTC.square().sum(-1)[:, None].clamp(min=1e-300)
    c_BHTT = layer.weight_BHRJ.double()
    size_BT = c_BHTT.abs().sum((1, 3)).clamp(min=1e-300)
    found["layer: a head's weights sum to its share"] = (
        (c_BHTT.sum(3) - share_BHT).abs().amax(1) / size_BT
    )[layer.is_defined_BGR[:, 0]].max().item()  # fmt: skip
    return found


def memory(args: argparse.Namespace) -> None:
    print(machine_line(torch.device("cpu")))
    context = multiprocessing.get_context("spawn")
    for T in args.lengths:
        with context.Pool(1) as pool:
            before, inputs, after = pool.apply(_peak, (T,))
        H, M = 12, 64
        print(
            f"T {T}: at most {(after - before) / 2**20:.0f} MiB more than before the summary (queries, keys and "
            f"values: {inputs / 2**20:.0f} MiB); one (H, T, T) "
            f"float32 tensor {H * T * T * 4 / 2**20:.0f} MiB, (H, T, T, C) {H * T * T * M * H * 4 / 2**30:.0f} GiB"
        )


@torch.no_grad()
def _peak(T: int) -> tuple[int, int, int]:
    """Return the resident bytes of this process before a summary of a layer, the bytes of its inputs, and the peak."""
    torch.set_num_threads(1)
    # a first call on a small layer, so that the libraries that it loads are not counted
    small = watched_layer(layer_of_124m(64), torch.randn(1, 64, 768))
    summarize_contributions(small.rows, layer_values(small), level="layer")
    layer = watched_layer(layer_of_124m(T), torch.randn(1, T, 768))
    gc.collect()
    # return the memory that the forward has freed to the system, so that it is not counted
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    for level in LEVELS:
        summarize_contributions(layer.rows, layer_values(layer), level=level)
    return before, 3 * T * 768 * 4, _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    """Return the value of a line of this process's /proc/self/status, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("exact")
    command.add_argument("model", nargs="?", default=None)
    command.add_argument("--text", type=Path)
    command.add_argument("--length", type=int, default=256)
    command.set_defaults(run=exact)
    command = commands.add_parser("cost")
    command.add_argument("--rounds", type=int, default=12)
    command.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    command.set_defaults(run=cost)
    command = commands.add_parser("memory")
    command.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    command.set_defaults(run=memory)
    args = parser.parse_args()
    try:
        args.run(args)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
