"""The published default: heads whose attention varies least over sequences."""

from saf_titan.saf.select.selector import Selector

SELECTOR = Selector(
    name="variance",
    group="attention",
    doc="variance of the attention over sequences; the published default",
    reason="their attention differed least from one text to another",
)
