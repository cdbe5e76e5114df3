"""1 - the largest cosine with what another head of the layer adds to the stream; see `output_scores`."""

from saf_titan.saf.select.selector import Selector

SELECTOR = Selector(
    name="redundancy",
    group="output",
    doc="1 - the largest cosine with what another head of the layer adds to the stream",
    reason="another head of the same layer contributed nearly the same",
    measure=lambda probe: probe.output_scores,
)
