"""Relative L2 change of the residual stream when the fitted pattern replaces the head; see `output_scores`."""

from saf_titan.saf.select.selector import Selector

SELECTOR = Selector(
    name="output_error",
    group="output",
    doc="relative L2 change of the residual stream when the fitted pattern replaces the head",
    reason="the fixed pattern changed the output of their layer least",
    measure=lambda probe: probe.output_scores,
)
