"""Measure the cost of the attention on relevant tokens (DTAP map, attention confidence) in a training run, on a CPU.

    OMP_NUM_THREADS=1 python scripts/bench/relevance.py [--rounds 12]

Runs on synthetic sequences measure this at each validation. Three things take turns in one process: a training step
(forward, backward and AdamW), a forward of as many held-out sequences, as the validation makes it in any case, and the
same forward with the measurement. The difference of the last two is what the measurement adds to a validation of one
batch. Times are medians of processor time.
"""

from __future__ import annotations

import argparse

from saf_titan import compat  # noqa: F401  # isort: skip

import torch
from timing import machine_line, time_interleaved
from torch.nn import functional as F

from saf_titan.config.own_sections import DataSection, ModelSection
from saf_titan.config.shapes import SHAPES
from saf_titan.data.generate import generate_rows
from saf_titan.models import model_spec
from saf_titan.run.relevance import RelevanceSums

DATA = DataSection(kind="mqar", pairs=4, vocab_size=64)
SIZES = (("debug", 8, 64), ("debug", 8, 256))
"""Model, sequences of a batch, tokens of a sequence."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    print(machine_line(torch.device("cpu")))
    print("processor time, medians; a measurement is the forward with it less the forward without it")
    for flavor, sequences, length in SIZES:
        measure(flavor, sequences, length, args.rounds)


def measure(flavor: str, sequences: int, length: int, rounds: int) -> None:
    """Print the times of one model and batch."""
    torch.manual_seed(0)
    model = model_spec(ModelSection(), SHAPES["gpt"][flavor], max_seq_len=length).model.build()
    model.init_states()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rows = generate_rows(DATA, seed=1, first_row=0, rows=sequences, length=length)
    inputs_BT, labels_BT = (torch.from_numpy(array) for array in rows)
    sums = RelevanceSums(model, DATA, 0, torch.device("cpu"))

    def step() -> None:
        logits_BTV = model(inputs_BT)
        F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=-100).backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.no_grad()
    def forward() -> None:
        model(inputs_BT)

    @torch.no_grad()
    def watched() -> None:
        with sums.following(inputs_BT, labels_BT):
            logits_BTV = model(inputs_BT)
        sums.add(logits_BTV)

    runs = {"step": step, "forward": forward, "with the measurement": watched}
    found = time_interleaved(runs, torch.device("cpu"), rounds, clock="cpu")
    taken, plain, both = (found[name].seconds for name in runs)
    print(
        f"{flavor}, {sequences} sequences of {length}: step {taken:.4f} s, forward {plain:.4f} s, with the measurement "
        f"{both:.4f} s; the measurement is {both - plain:.4f} s, {(both - plain) / taken:.3f} of a step "
        f"({min(one.runs for one in found.values())} rounds)",
        flush=True,
    )


if __name__ == "__main__":
    main()
