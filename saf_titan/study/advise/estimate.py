"""Counts the operations that freezing would spare, from a configuration alone; operations are not seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# first: it must precede every other torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

import torch

from saf_titan.config import RunConfig
from saf_titan.models import model_spec
from saf_titan.models.flops import training_flops_per_token


def estimate(run: RunConfig, rates: Sequence[float]) -> Iterator[str]:
    """Yield lines that say which share of a step's operations attention is, and how many operations a freeze spares.

    Operations are counted as in `models.flops`, where the mixing of a static head counts like the product that it
    replaces. Query and key rows are spared if no head of a kv group is live; here, in proportion to the rate.

    rates: shares of all heads, above 0 and below 1.
    """
    with torch.device("meta"):
        model = model_spec(run.model, run.shape, max_seq_len=run.training.seq_len).model.build()
    total = training_flops_per_token(model, run.training.seq_len)
    shape = run.shape
    product = 6 * run.training.seq_len * shape.head_dim * shape.num_heads * shape.num_layers
    rows = 6 * shape.head_dim * shape.dim * (shape.num_heads + shape.num_kv_heads) * shape.num_layers
    yield (
        f"{run.model.family} {run.model.flavor} at {run.training.seq_len:,} tokens: attention (scores and values) is "
        f"{2 * product / total:.0%} of the {total / 1e6:,.1f} million operations a token"
    )
    for rate in (*rates, 1.0):
        spared = rate * (product + rows) / total
        name = "all heads" if rate == 1 else f"{rate:.0%} of the heads"
        yield f"{name} static: {spared:.0%} of the operations spared, {1 / (1 - spared):.2f} times the speed by count"
    yield (
        "Operations are not seconds: attention often takes more time than its count says, and the mixing of a static "
        "head, counted here like the product that it replaces, less. Give a checkpoint to measure."
    )
