"""Conversion of TOML values to the annotated types of the schema, and back to TOML text."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from saf_titan.fields.choices import OneOf
from saf_titan.fields.errors import nearest

_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_INT64 = 2**63


class Mismatch(ValueError):
    """Raised when a value has the wrong type or is out of range; the message states what is allowed."""


def field_types(section: type) -> dict[str, Any]:
    """Return the annotated type of every field of a section, in order."""
    hints = get_type_hints(section, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(section)}


def convert(value: Any, hint: Any) -> Any:
    """Return `value` converted to the annotated type `hint`; raise `Mismatch` if it has another type or range."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner, allowed = convert(value, args[0]), args[1]
        if isinstance(allowed, OneOf):
            if inner not in allowed.names:
                raise Mismatch(f"must be {describe(hint)}{_suggest(inner, allowed.names)}")
        elif inner not in allowed:
            raise Mismatch(f"must be {describe(hint)}")
        return inner
    if origin is Literal:
        if value not in args or not isinstance(value, str):
            raise Mismatch(f"must be {describe(hint)}{_suggest(value, args)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise Mismatch(f"must be {describe(hint)}")
        return tuple(_table(item, args[0]) if is_section(args[0]) else convert(item, args[0]) for item in value)
    return _scalar(value, hint)


def _scalar(value: Any, hint: Any) -> Any:
    # isinstance would accept a bool as an int; in TOML they are different types
    if type(value) is hint:
        if hint is int and abs(value) >= _INT64:
            raise Mismatch("must fit into 64 bits")
        if hint is str and not _is_unicode(value):
            raise Mismatch("must be valid UTF-8")
        return value
    if hint is float and type(value) is int:
        if abs(value) >= _INT64:
            raise Mismatch("must fit into 64 bits")
        return float(value)
    message = f"must be {describe(hint)}"
    if hint is int and isinstance(value, float) and value.is_integer() and abs(value) < _INT64:
        message += f"; write {int(value)}"
    if hint is bool:
        message += _suggest(value, ("true", "false"))
    raise Mismatch(message)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _suggest(value: Any, options: tuple[str, ...]) -> str:
    match = nearest(value, options) if isinstance(value, str) else None
    return f"; did you mean {match}?" if match else ""


def describe(hint: Any) -> str:
    """Return what a field accepts as text, for example "a whole number, at least 1"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal or choices(hint):
        return f"one of {_choices(hint)}"
    if origin is Annotated:
        return f"{_WORDS[args[0]]}, {args[1]}"
    if origin is tuple:
        items = {int: "whole numbers", str: "strings"}
        if is_section(args[0]):
            return "a list of tables"
        return f"a list of {items[args[0]]}" if args[0] in items else f"a list of values from {_choices(args[0])}"
    return _WORDS[hint]


def _choices(hint: Any) -> str:
    return ", ".join(map(to_toml_value, choices(hint) or get_args(hint)))


def choices(hint: Any) -> Mapping[str, str]:
    """Return name -> documentation if the field takes a name of a registry; an empty mapping otherwise."""
    return next((allowed.docs for allowed in getattr(hint, "__metadata__", ()) if isinstance(allowed, OneOf)), {})


def _table(value: Any, table: Any) -> Any:
    """Convert one item of a list of tables; a string (from the command line) is parsed by the table's `read`."""
    if isinstance(value, table):
        return value
    try:
        values = table.read(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Mismatch(str(error)) from error
    if not isinstance(values, dict):
        raise Mismatch("must be a list of tables")
    hints = field_types(table)
    if unknown := [name for name in values if name not in hints]:
        raise Mismatch(
            f"{unknown[0]} is not a key of a group{_suggest(unknown[0], tuple(hints))}; its keys are {', '.join(hints)}"
        )
    read = {}
    for name, item in values.items():
        try:
            read[name] = convert(item, hints[name])
        except Mismatch as mismatch:
            raise Mismatch(f"{name} = {to_toml_value(item)}: {mismatch}") from mismatch
    required = [f.name for f in dataclasses.fields(table) if f.default is dataclasses.MISSING]
    if missing := [name for name in required if name not in read]:
        raise Mismatch(f"a group needs {missing[0]}")
    return table(**read)


def is_table_list(hint: Any) -> bool:
    """Return whether a field is a list of tables."""
    return get_origin(hint) is tuple and is_section(get_args(hint)[0])


def takes_text(hint: Any) -> bool:
    """Return whether a field holds a string, which is written without quotes on a command line."""
    return hint is str or get_origin(hint) is Literal or bool(choices(hint))


def to_toml_value(value: Any) -> str:
    """Return a value as TOML text on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # basic strings of TOML are like those of JSON, except that TOML needs DEL escaped
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(map(to_toml_value, value)) + "]"
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            given = {f.name: changed[f.name] for f in dataclasses.fields(value) if changed[f.name] != f.default}
            return to_toml_value(given)
        case dict():
            return "{" + ", ".join(f"{key} = {to_toml_value(item)}" for key, item in value.items()) + "}"
        case _:
            return str(value)


def is_section(hint: Any) -> bool:
    """Return whether the type of a field is a dataclass, that is, a table of the TOML file."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)
