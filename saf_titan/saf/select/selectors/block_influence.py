"""1 - the mean cosine of the residual stream with and without the replacement; see `output_scores`."""

from saf_titan.saf.select.selector import Selector

SELECTOR = Selector(
    name="block_influence",
    group="output",
    doc="1 - the mean cosine of the residual stream with and without the replacement",
    reason="the output of their layer depended least on their attention",
    measure=lambda probe: probe.output_scores,
)
