"""Numbers that JSON does not have."""

from __future__ import annotations

import json
import math

from saf_titan.fields.json_values import without_nan


def test_what_is_not_finite_becomes_none_however_deep() -> None:
    value = {"a": math.nan, "b": [1.5, (-math.inf, 2)], "c": {"d": math.inf, "e": "nan", "f": None, "g": True}}
    found = without_nan(value)
    assert found == {"a": None, "b": [1.5, [None, 2]], "c": {"d": None, "e": "nan", "f": None, "g": True}}
    json.dumps(found, allow_nan=False)
