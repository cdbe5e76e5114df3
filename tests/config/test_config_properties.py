"""Whatever is in the file and on the command line: a run, or a `ConfigError` of one line a fault.

Covers fields/convert.py, fields/ranges.py.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import tomli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saf_titan.config import ConfigError, RunConfig, load_config, to_toml
from saf_titan.fields.convert import choices, convert, field_types, is_section, is_table_list, to_toml_value
from saf_titan.fields.ranges import Range

# the folder of a test is written over by each example
quick = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

SECTIONS = {name: field_types(hint) for name, hint in field_types(RunConfig).items() if is_section(hint)}
KEYS = sorted({key for fields in SECTIONS.values() for key in fields})

scalars = (
    st.booleans()
    | st.integers()
    | st.integers(-3, 40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "gpt", "llama3", "1b", "AdamW", "linear", "variance", "fused", "true", "0.5"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
tables = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), values, max_size=5)
documents = st.dictionaries(st.sampled_from(sorted(SECTIONS)) | st.text(max_size=8), tables | values, max_size=5)


def toml(document: dict[str, Any]) -> str:
    """A document as inline tables."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{quoted(key)} = {value(entry)}" for key, entry in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ", ".join(map(value, item)) + "]"
        return to_toml_value(item)

    def quoted(key: str) -> str:
        return json.dumps(key, ensure_ascii=False).replace("\x7f", "\\u007f")

    return "".join(f"{quoted(key)} = {value(item)}\n" for key, item in document.items())


def faults(path: Path | None, words: list[str]) -> ConfigError | None:
    """The error of a configuration, or None; anything else that is raised fails the test."""
    try:
        assert isinstance(load_config(path, words), RunConfig)
    except ConfigError as error:
        return error
    return None


def check(path: Path | None, words: list[str]) -> None:
    error = faults(path, words)
    if error is not None:
        assert len(str(error).splitlines()) == len(error.problems) >= 1
        assert all(line.isprintable() for line in str(error).split("\n"))


@quick
@given(document=documents)
def test_any_document(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml(document), encoding="utf-8", errors="replace")
    check(path, [])


@quick
@given(content=st.binary(max_size=60) | st.text("[]{}=.\"'# \n1e_truefalsnx", max_size=40).map(str.encode))
def test_any_bytes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    check(path, [])


options = st.builds("--{}.{}".format, st.sampled_from(sorted(SECTIONS)), st.sampled_from(KEYS)) | st.text(max_size=12)


@quick
@given(
    words=st.lists(options | st.text(max_size=10) | st.builds("{}={}".format, options, st.text(max_size=8)), max_size=5)
)
def test_any_command_line(words: list[str]) -> None:
    check(None, words)


def allowed(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field takes."""
    if is_table_list(hint):
        (table, *_) = get_args(hint)
        fields = {name: allowed(item) for name, item in field_types(table).items() if name == "factor"}
        return st.lists(st.builds(table, match=st.sampled_from(["qk", "ov"]), **fields), max_size=2).map(tuple)
    if names := choices(hint):
        return st.sampled_from(list(names))
    if get_origin(hint) is Annotated:
        base, limits = get_args(hint)
        low = limits.low if limits.low is not None else limits.above
        high = limits.high if limits.high is not None else limits.below
        if base is float:
            # open ends are the only values to filter out
            return st.floats(low, high, allow_infinity=False).filter(lambda number: number in limits)
        return st.integers(low, 2**63 - 1 if high is None else high) | st.sampled_from([*limits.also, low])
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(st.integers(0, 11) if get_args(hint)[0] is int else allowed(get_args(hint)[0]), max_size=3).map(
            tuple
        )
    if hint is bool:
        return st.booleans()
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(quick, max_examples=40)
@given(data=st.data())
def test_any_value_reads_back_to_itself(data: st.DataObject) -> None:
    sections = {
        name: type(getattr(RunConfig(), name))(**{key: data.draw(allowed(hint)) for key, hint in fields.items()})
        for name, fields in SECTIONS.items()
    }
    document = tomli.loads(to_toml(RunConfig(dump_folder="run", **sections)))
    for name, fields in SECTIONS.items():
        # the freeze has two spellings, of which one is written
        either = {"step", "fraction"} if name == "saf" else set()
        assert fields.keys() - document[name].keys() <= either
        for key, value in document[name].items():
            assert convert(value, fields[key]) == getattr(sections[name], key)


@quick
@given(
    value=st.floats() | st.integers(),
    low=st.none() | st.integers(-5, 5),
    above=st.none() | st.integers(-5, 5),
    high=st.none() | st.integers(-5, 5),
    below=st.none() | st.integers(-5, 5),
)
def test_a_range_is_the_meet_of_its_ends(
    value: float, low: int | None, above: int | None, high: int | None, below: int | None
) -> None:
    ends = [
        low is None or value >= low,
        above is None or value > above,
        high is None or value <= high,
        below is None or value < below,
    ]
    assert (value in Range(low=low, above=above, high=high, below=below)) == (math.isfinite(value) and all(ends))
    assert (-77 in Range(low=low, also=(-77,))) is True


@pytest.mark.parametrize("character", ["\n", "\r", "\x85", "\u2028", "\x1b"])
def test_control_characters_do_not_break_the_lines_of_an_error(tmp_path: Path, character: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml({f"a{character}b": 1, "training": {f"x{character}y": character}}), encoding="utf-8")
    check(path, [f"--training.x{character}y=1", f"{character}", f"--saf.selector=a{character}b"])
