"""The control that freezing is compared with: the head is removed."""

from saf_titan.saf.fit.content import PrunedContent

CONTENT = PrunedContent(
    name="prune",
    doc="no pattern: the head is removed with its values and its output",
    replacement="nothing: they were removed, as a control",
)
