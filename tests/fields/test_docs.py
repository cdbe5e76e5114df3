"""The documentation of fields is read from the source, inherited fields included."""

import dataclasses

from saf_titan.config.own_sections import SafSection
from saf_titan.fields.docs import field_docs
from saf_titan.saf.plan.settings import PlanSettings


def test_every_field_has_its_own_documentation() -> None:
    docs = field_docs(SafSection)
    assert set(docs) == {field.name for field in dataclasses.fields(SafSection)}
    assert docs["rate"] == field_docs(PlanSettings)["rate"] == "Share of all heads that are static in the end."
    assert all(len(doc) > 10 for doc in docs.values())
