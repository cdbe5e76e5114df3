"""Make a checked `RunConfig` from a TOML file and command-line overrides.

Each value is stored with its source, so that every fault is reported where the user can correct it, also a conflict
between a key of the file and a key of the command line.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from saf_titan.config.checks import conflicts
from saf_titan.config.packaged import find_config
from saf_titan.config.schema import RunConfig
from saf_titan.config.toml_file import read_toml
from saf_titan.fields.convert import (
    Mismatch,
    convert,
    field_types,
    is_section,
    is_table_list,
    takes_text,
    to_toml_value,
)
from saf_titan.fields.errors import COMMAND_LINE, ConfigError, Problem, nearest


class Setting(NamedTuple):
    """A value that the user gave, and the place where it was given."""

    value: Any
    source: str


_FIELDS = field_types(RunConfig)
_SECTIONS = {name: field_types(hint) for name, hint in _FIELDS.items() if is_section(hint)}
_TYPES: dict[str, Any] = {name: hint for name, hint in _FIELDS.items() if name not in _SECTIONS} | {
    f"{section}.{name}": hint for section, fields in _SECTIONS.items() for name, hint in fields.items()
}
"""Every key of a run, dotted, with its annotated type."""

_REPLACED = {
    "validator.steps": "set validator.tokens, the number of held-out tokens over all ranks together",
}
"""Keys of earlier versions and of torchtitan, with what to write instead."""


class Table(NamedTuple):
    """Settings that replace values of the run's file, such as those of an arm of a study."""

    values: dict[str, Any]
    """The settings as in a TOML file: sections are dicts."""
    source: str
    """Where the settings were given, for error messages."""


def load_config(path: str | Path | None, overrides: Sequence[str] = (), *, tables: Sequence[Table] = ()) -> RunConfig:
    """Read a run's configuration.

    Args:
        path: TOML file, or the name of one that comes with the package; None for the defaults.
        overrides: command-line words, `--section.key value` or `--section.key=value`. Values are TOML; a string needs
            no quotes.
        tables: settings that replace those of the file; later tables replace earlier ones, and the command line
            replaces all.

    Raises:
        ConfigError: all faults of file, tables and command line together.
    """
    problems: list[Problem] = []
    path = find_config(Path(path)) if path is not None else None
    file = [] if path is None else [Table(read_toml(path, problems), str(path))]
    layers = [dict(_flatten(table.values, table.source, problems)) for table in (*file, *tables)]
    layers.append(_read_overrides(overrides, problems))
    settings: dict[str, Setting] = {}
    for layer in layers:
        for key in layer:
            # saf.step and saf.fraction say the same: a later layer with one of them replaces the other
            other = {"saf.step": "saf.fraction", "saf.fraction": "saf.step"}.get(key)
            if other in settings and other not in layer:
                del settings[other]
        settings |= layer

    values: dict[str, Any] = {}
    for key, setting in settings.items():
        try:
            values[key] = convert(setting.value, _TYPES[key])
        except Mismatch as mismatch:
            problems.append(Problem(setting.source, key, _shown(setting.value), str(mismatch)))

    config = _build(values, path.stem if path is not None else "run")
    faulty = {problem.key for problem in problems}
    sources = [str(path or COMMAND_LINE), *(table.source for table in tables), COMMAND_LINE]
    for conflict in conflicts(config, frozenset(values)):
        # a value that could not be read has its default here (key "": all values of a file), so it proves no conflict
        if "" not in faulty and faulty.isdisjoint(conflict.keys):
            problems.append(_located(conflict.keys, conflict.message, config, settings, sources))
    if problems:
        raise ConfigError(problems)
    return config


def override_table(words: Sequence[str]) -> Table:
    """Read command-line words as `load_config` does, as a table that other tables can follow.

    Raises:
        ConfigError: a word is no option, an option has no value, or its key does not exist.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for key, setting in _read_overrides(words, problems).items():
        section, _, name = key.rpartition(".")
        (values.setdefault(section, {}) if section else values)[name] = setting.value
    if problems:
        raise ConfigError(problems)
    return Table(values, COMMAND_LINE)


def _flatten(table: dict[str, Any], source: str, problems: list[Problem]) -> Iterator[tuple[str, Setting]]:
    for name, value in table.items():
        if name not in _SECTIONS:
            if name in _TYPES:
                yield name, Setting(value, source)
            else:
                problems.append(_unknown(name, value, source))
        elif isinstance(value, dict):
            for key, item in value.items():
                dotted = f"{name}.{key}"
                if dotted in _TYPES:
                    yield dotted, Setting(item, source)
                else:
                    problems.append(_unknown(dotted, item, source))
        else:
            problems.append(Problem(source, name, _shown(value), f"must be a section: write [{name}]"))


def _read_overrides(words: Sequence[str], problems: list[Problem]) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        if not name.startswith("--") or name == "--":
            problems.append(
                Problem(COMMAND_LINE, "", "", f"{word!r} is no option; options look like --section.key value")
            )
            continue
        key = name[2:].replace("-", "_")
        has_value = bool(equals)
        if not has_value and rest and not rest[0].startswith("--"):
            text, has_value = rest.pop(0), True
        if key in _TYPES and not has_value:
            problems.append(Problem(COMMAND_LINE, key, "", f"its value is missing; write --{key} VALUE"))
        elif key in _TYPES and is_table_list(_TYPES[key]):
            # the option is given once for each table
            earlier = settings[key].value if key in settings else []
            settings[key] = Setting([*earlier, text], COMMAND_LINE)
        elif key in _TYPES:
            settings[key] = Setting(_parse_word(text, as_text=takes_text(_TYPES[key])), COMMAND_LINE)
        elif key in _SECTIONS:
            problems.append(Problem(COMMAND_LINE, key, text, f"is a section; its keys are {', '.join(_SECTIONS[key])}"))
        else:
            problems.append(_unknown(key, _parse_word(text, as_text=False), COMMAND_LINE))
    return settings


def _parse_word(text: str, *, as_text: bool) -> Any:
    """Return one command-line value read as TOML, or else as the bare word. A text field reads only a quoted string as
    TOML.
    """
    try:
        table = tomli.loads(f"value = {text}")
    except (tomli.TOMLDecodeError, RecursionError):
        return text
    if len(table) != 1 or (as_text and not isinstance(table["value"], str)):
        return text
    return table["value"]


def _unknown(key: str, value: Any, source: str) -> Problem:
    if key in _REPLACED:
        return Problem(source, key, _shown(value), f"there is no such key any more; {_REPLACED[key]}")
    section, _, name = key.rpartition(".")
    missing = section if section not in _SECTIONS else ""
    if not section and isinstance(value, dict):
        missing = name
    if missing:
        match = nearest(missing, _SECTIONS)
        hint = f"did you mean [{match}]?" if match else f"the sections are {', '.join(_SECTIONS)}"
        return Problem(source, f"[{missing}]", "", f"unknown section; {hint}")
    siblings = _SECTIONS[section] if section else [key for key in _TYPES if "." not in key]
    elsewhere = [key for key in _TYPES if key.rpartition(".")[2] == name]
    match = nearest(name, siblings)
    if elsewhere:
        hint = f"did you mean {elsewhere[0]}?"
    elif match:
        hint = f"did you mean {f'{section}.{match}' if section else match}?"
    else:
        hint = f"{f'[{section}] has' if section else 'outside a section there is'} {', '.join(siblings)}"
    return Problem(source, key, _shown(value), f"unknown key; {hint}")


def _build(values: dict[str, Any], name: str) -> RunConfig:
    sections = {
        section: _FIELDS[section](**{key: values[f"{section}.{key}"] for key in fields if f"{section}.{key}" in values})
        for section, fields in _SECTIONS.items()
    }
    dump_folder = values.get("dump_folder") or f"outputs/{name}"
    return RunConfig(dump_folder=dump_folder, **sections)


def _located(
    keys: tuple[str, ...], message: str, config: RunConfig, settings: dict[str, Setting], sources: Sequence[str]
) -> Problem:
    """Return a conflict as a problem of its first key, in the last of the `sources` that gives any of its keys."""
    setters = {settings[key].source for key in keys if key in settings}
    value = _shown(_value_of(config, keys[0])) + ("" if keys[0] in settings else " (default)")
    source = next((source for source in reversed(sources) if source in setters), sources[0])
    return Problem(source, keys[0], value, message)


def _value_of(config: RunConfig, key: str) -> Any:
    """Return the value of a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _shown(value: Any) -> str:
    text = to_toml_value(value)
    return text if len(text) <= 60 else text[:57] + "..."
