"""All selectors by name. Imports no torch."""

from __future__ import annotations

from saf_titan.fields.registry import collect
from saf_titan.saf.select import selectors
from saf_titan.saf.select.selector import GROUPS, Selector

SELECTORS = collect(selectors, "SELECTOR", Selector, GROUPS)
