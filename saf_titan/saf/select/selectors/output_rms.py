"""Root mean square of what the head adds to the residual stream; see `output_scores`."""

from saf_titan.saf.select.selector import Selector

SELECTOR = Selector(
    name="output_rms",
    group="output",
    doc="root mean square of what the head adds to the residual stream",
    reason="they contributed least to the output of their layer",
    measure=lambda probe: probe.output_scores,
)
