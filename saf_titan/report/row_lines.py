"""Rows of `metrics.jsonl` as lines of text.

A row is one line of JSON, an object whose `kind` names its class in `KINDS` and whose other entries are the fields of
the class. JSON has no NaN and no infinity: a number that is not finite is written as null, and null is read as nan.

This module imports neither torch nor matplotlib, so that the trainer can import it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, get_type_hints

from saf_titan.fields.json_values import without_nan
from saf_titan.report.rows import KINDS, Row, UnknownRow, perplexity

_RATE_PREFIX = "lr/"

_KIND_OF = {row_type: kind for kind, row_type in KINDS.items()}


def write_row(row: Row) -> str:
    """Return a row as one line of JSON, newline included. Losses are accompanied by their perplexity."""
    fields: dict[str, Any] = {"kind": _KIND_OF[type(row)]}
    for name in _names(type(row)):
        value = getattr(row, name)
        if name == "rates":
            fields |= {f"{_RATE_PREFIX}{circuit}": rate for circuit, rate in value.items()}
        else:
            fields[name] = value
        if name == "loss":
            fields["perplexity"] = perplexity(value)
    return json.dumps(without_nan(fields), allow_nan=False) + "\n"


def read_row(line: str) -> Row | UnknownRow:
    """Read one line of `metrics.jsonl`; entries of a known kind that this version does not know are ignored.

    Raises:
        ValueError: the line is damaged: no JSON object with a `kind`, a field that has no default is missing, or a
            value has the wrong type. The message says what is wrong.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise ValueError("it is no JSON object with a kind")
    kind = fields.pop("kind")
    row_type = KINDS.get(kind)
    if row_type is None:
        return UnknownRow(kind=kind, fields=fields)
    known: dict[str, Any] = {}
    hints = get_type_hints(row_type)
    for name in _names(row_type):
        if name == "rates":
            fields[name] = {
                key.removeprefix(_RATE_PREFIX): rate for key, rate in fields.items() if key.startswith(_RATE_PREFIX)
            }
        if name in fields:
            try:
                known[name] = _READERS[hints[name]](fields[name])
            except (TypeError, ValueError):
                raise ValueError(f"the {name} of a {kind!r} row is {str(fields[name])[:40]!r}") from None
    try:
        return row_type(**known)
    except TypeError:
        required = [f.name for f in dataclasses.fields(row_type) if f.name not in known and _is_required(f)]
        raise ValueError(f"a {kind!r} row has no {' and no '.join(required)}") from None


def _names(row_type: type[Row]) -> list[str]:
    return [f.name for f in dataclasses.fields(row_type)]


def _is_required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError
    return value


def _number(value: Any) -> float:
    """Null is nan; so is what older versions wrote as NaN. An integer beyond all floats is infinite."""
    if value is None:
        return math.nan
    if type(value) not in (int, float):
        raise ValueError
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ValueError
    return {name: _number(item) for name, item in value.items()}


def _pair(value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError
    return _number(value[0]), _number(value[1])


def _series(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(map(_number, value))


def _table(value: Any) -> tuple[tuple[float, ...], ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(map(_series, value))


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


_READERS: dict[Any, Callable[[Any], Any]] = {
    int: _count,
    int | None: _optional(_count),
    float: _number,
    str: _text,
    dict[str, float]: _numbers,
    tuple[float, ...]: _series,
    tuple[tuple[float, ...], ...]: _table,
    tuple[float, float] | None: _optional(_pair),
}
"""How a value of JSON becomes a field of each type; they raise ValueError for a value of another type."""
