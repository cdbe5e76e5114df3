"""All pattern contents by name. Imports no torch."""

from __future__ import annotations

from saf_titan.fields.registry import collect
from saf_titan.saf.fit import contents
from saf_titan.saf.fit.content import GROUPS, Content, DenseContent

CONTENTS = collect(contents, "CONTENT", Content, GROUPS)

DENSE_CONTENTS = {name: content for name, content in CONTENTS.items() if isinstance(content, DenseContent)}
"""The contents that keep a T x T matrix for each head."""
