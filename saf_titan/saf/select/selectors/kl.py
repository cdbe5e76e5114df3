"""Heads whose attention is nearest to its own mean over sequences."""

from saf_titan.saf.select.selector import Selector

SELECTOR = Selector(
    name="kl",
    group="attention",
    doc="mean KL divergence of a sequence's attention from the mean over sequences, in nats",
    reason="their attention on single texts was nearest to their mean attention",
)
