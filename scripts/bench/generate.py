"""Compare decoding with static and with ordinary heads: cache bytes and tokens a second, at the shape of GPT-2 (124M).

    python scripts/bench/generate.py                   # all cells, about seven minutes on one thread
    python scripts/bench/generate.py --cell float32 1 4096

A cell is one dtype, batch and context. It first checks that cached decoding gives the logits of the whole forward. Its
alternatives then take turns to decode one step from caches of random keys and values, which they share. Weights are
random too, because the time of a step depends on neither. Times are processor time of the process. The time of a step
is a weighted mean of two medians: one step in BLOCK begins a block of static sums and takes longer than the others.

"free" is an upper bound: the same model, but its static heads return their newest value unmixed, at no cost.

Legend: B sequences, K kv heads, S static heads, T positions, D head dim.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from model import sample_pattern, spread_heads
from timing import machine_line

from saf_titan.config import SHAPES
from saf_titan.config.own_sections import ModelSection
from saf_titan.generate.attention import CachedAttention
from saf_titan.generate.cache import Store
from saf_titan.generate.cached_model import CachedModel, cached
from saf_titan.generate.progress import Progress
from saf_titan.generate.sums import BLOCK
from saf_titan.models import model_spec
from saf_titan.models.decoder import FreezableDecoder

RATES = (0.25, 0.5)
CELLS = [(dtype, batch, T) for batch in (1, 16) for dtype in ("float32", "bfloat16") for T in (1024, 4096, 8192)]
LAYERS = {1: 12, 16: 3}
"""Number of layers by batch: fewer than twelve if their caches would not fit; the vocabulary shrinks in proportion."""
STEPS = 36


class Unmixed:
    """Mixing at no cost: the newest value is the output."""

    num_bytes = 0

    def step(self, v_BSD: Tensor, positions: Sequence[int]) -> Tensor:
        return v_BSD


def build(dtype: torch.dtype, num_layers: int, T: int, rate: float) -> FreezableDecoder:
    """Return a decoder with random weights in which a share `rate` of the heads of each layer is static."""
    shape = SHAPES["gpt"]["124m"]
    vocabulary = round(shape.vocab_size * num_layers / shape.num_layers)
    shape = dataclasses.replace(shape, num_layers=num_layers, vocab_size=vocabulary)
    torch.manual_seed(0)
    model: FreezableDecoder = model_spec(ModelSection(family="gpt", flavor="124m"), shape, max_seq_len=T).model.build()
    model.init_weights()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    if heads := spread_heads(shape.num_heads, rate):
        pattern = sample_pattern(len(heads), T)
        for layer in model.layers.values():
            layer.attention.set_static(heads, pattern.alpha_HT, pattern.rho_HT)
    return model.eval()


def check(model: FreezableDecoder, dtype: torch.dtype) -> None:
    """Exit with an error unless cached decoding gives the logits of the whole forward."""
    ids = torch.randint(model.lm_head.out_features, (1, 80), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected_TV = model(ids)[0, 39:].float()
    for states in (False, True):
        with cached(model, 80, states=states) as decoder:
            steps = [
                decoder.prefill([ids[0, :40].tolist()]),
                *(decoder.step([token]) for token in ids[0, 40:].tolist()),
            ]
        error = (torch.cat(steps) - expected_TV).abs().max() / expected_TV.abs().max()
        # the limit is larger for bf16, which rounds to 8 bits in every layer
        if error > (1e-5 if dtype == torch.float32 else 3e-2):
            raise SystemExit(f"cached decoding differs from the whole forward by {error:.1e}: nothing was timed")


class Alternative:
    """One model whose cache holds random entries for T positions."""

    def __init__(
        self, model: FreezableDecoder, buffers: list[tuple[Tensor, Tensor]], batch: int, T: int, *,
        free: bool = False, states: bool = False,
    ) -> None:  # fmt: skip
        self.blocks = list(model.layers.values())
        self.progress = Progress(T + STEPS)
        self.progress.start([T] * batch)
        self.layers = []
        for block, buffer in zip(self.blocks, buffers, strict=True):
            # the model may hold the cached layer of another alternative; take the attention inside it
            attention = block.attention.attention if isinstance(block.attention, CachedAttention) else block.attention
            layer = CachedAttention(attention, self.progress, states=states)
            self._fill(layer, buffer, batch, free=free)
            self.layers.append(layer)
        self.decoder = CachedModel(model, self.layers, self.progress)
        self.plain: list[float] = []
        self.first: list[float] = []

    def _fill(self, layer: CachedAttention, buffer: tuple[Tensor, Tensor], batch: int, *, free: bool) -> None:
        capacity, D = self.progress.capacity, layer.attention.head_dim
        num_live, num_static = len(layer.layout.key_heads), len(layer.layout.value_heads)

        def store(flat: Tensor, first: int, num_heads: int) -> Store | None:
            size = batch * capacity * D
            x_BKTD = flat[first * size : (first + num_heads) * size].view(batch, num_heads, capacity, D)
            return Store(x_BKTD) if num_heads else None

        keys, values = buffer
        if layer.layout.states:
            # states are computed from values, because the time of a step does not depend on how they came about
            v_BTKD = torch.randn(batch, self.progress.lengths[0], layer.attention.n_kv_heads, D).to(keys.dtype)
            k_BTKD = v_BTKD[:, :, : len(layer.layout.key_heads)]
            layer.start(k_BTKD, v_BTKD)
            return
        static_values = store(values, num_live, num_static)
        layer.use(store(keys, 0, num_live), store(values, 0, num_live), static_values)
        if free and static_values is not None:
            layer.sums = Unmixed()

    def step(self) -> None:
        """Decode one token of every sequence and note the time."""
        for block, layer in zip(self.blocks, self.layers, strict=True):
            block.attention = layer
        start = time.process_time()
        self.decoder.step([1] * len(self.progress.lengths))
        seconds = time.process_time() - start
        begins = (len(self.plain) + len(self.first)) % BLOCK == 0
        (self.first if begins else self.plain).append(seconds)

    @property
    def seconds(self) -> float:
        """Average processor seconds of a step."""
        return (statistics.median(self.first) + (BLOCK - 1) * statistics.median(self.plain)) / BLOCK


def measure(dtype_name: str, batch: int, T: int) -> list[str]:
    """Measure one cell and return its rows of the table."""
    dtype, num_layers = getattr(torch, dtype_name), LAYERS[batch]
    buffers = []
    for _ in range(num_layers):
        shape = SHAPES["gpt"]["124m"]
        size = batch * shape.num_heads * (T + STEPS) * shape.head_dim
        # numbers as large as keys, repeated, because to draw billions of them would take longer than the measurement
        pair = [torch.randn(1 << 16).to(dtype).repeat(-(-size // (1 << 16)))[:size].clone() for _ in range(2)]
        buffers.append((pair[0], pair[1]))
    models = {rate: build(dtype, num_layers, T + STEPS, rate) for rate in (0.0, *RATES)}
    for model in models.values():
        check(model, dtype)
    runs = {(0.0, "ordinary"): Alternative(models[0.0], buffers, batch, T)}
    for rate in RATES:
        runs[rate, "static"] = Alternative(models[rate], buffers, batch, T)
        runs[rate, "free"] = Alternative(models[rate], buffers, batch, T, free=True)
    if batch == 1:
        # the weights of these patterns are power laws of the lag, for which the certificate allows states
        runs[0.5, "states"] = Alternative(models[0.5], buffers, batch, T, states=True)
    for step in range(STEPS):
        order = list(runs.values())
        for run in order if step % 2 else reversed(order):
            run.step()
    ordinary = runs[0.0, "ordinary"]
    rows = []
    for (rate, name), run in runs.items():
        if name == "free":
            continue
        gain = ordinary.seconds / run.seconds
        free = ordinary.seconds / runs[rate, "free"].seconds if rate else 1.0
        cache = 100 * run.decoder.num_bytes / ordinary.decoder.num_bytes
        # with a bound below 1.04 the share would be noise
        share = f"{100 * (gain - 1) / gain / ((free - 1) / free):.0f} %" if free > 1.04 else ""
        static = (f"{100 * rate:.0f} %" if rate else "none") + (", states" if name == "states" else "")
        speed = f"{batch / run.seconds:.2f} | {gain:.3f}x | {free:.3f}x | {share}"
        memory = f"{run.decoder.num_bytes / 2**20:.0f} | {cache:.1f} %"
        rows.append(f"| {dtype_name} | {batch} | {num_layers} | {T:,} | {static} | {speed} | {memory} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", nargs=3, action="append", metavar=("DTYPE", "BATCH", "CONTEXT"))
    args = parser.parse_args()
    cells = [(dtype, int(batch), int(T)) for dtype, batch, T in args.cell] if args.cell else CELLS
    torch.set_num_threads(1)
    print(machine_line(torch.device("cpu")))
    names = "dtype batch layers context static tokens/s gain free share-of-free cache-MiB of-ordinary"
    columns = [name.replace("-", " ") for name in names.split()]
    print("| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", sep="\n")
    for cell in cells:
        start = time.perf_counter()
        print(*measure(*cell), sep="\n", flush=True)
        print(f"{cell}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
