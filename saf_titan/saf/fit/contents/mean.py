"""The compact fit to the head's mean attention: what Selective Attention Freezing puts in place of a head."""

from saf_titan.saf.fit.content import CompactContent

CONTENT = CompactContent(
    name="mean",
    doc="the compact fit to the head's mean attention; the published default",
    replacement="a fixed pattern, fitted to their mean attention",
)
