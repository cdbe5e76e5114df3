"""What the readers share: JSON and its entries, with errors that name file and place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: str | Path) -> Any:
    """Read a JSON file; raise ValueError, which names it, if it is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: it is no JSON ({error})") from None


def entry(values: Any, name: str, kind: type, where: str) -> Any:
    """Return an entry of an object; raise ValueError if it is not there or of another kind."""
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, kind):
        raise ValueError(f"{where}: {name} must be there and be a {kind.__name__}, got {str(value)[:40]!r}")
    return value
