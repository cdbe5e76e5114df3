"""What the trainer writes is what the report reads, and every line is JSON. Covers report/row_lines.py."""

import dataclasses
import json
import math
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saf_titan.report.row_lines import read_row, write_row
from saf_titan.report.rows import (
    KINDS,
    FreezeUndoneRow,
    Row,
    TrainRow,
    UnknownRow,
    ValidationRow,
    perplexity,
)

counts = st.integers(0, 2**53 - 1)
names = st.text("abc_/", min_size=1, max_size=6)
VALUES: dict[Any, st.SearchStrategy] = {
    int: counts,
    int | None: st.none() | counts,
    float: st.floats(),
    str: st.text(max_size=8),
    dict[str, float]: st.dictionaries(names, st.floats(), max_size=3),
    tuple[float, ...]: st.lists(st.floats(), max_size=3).map(tuple),
    tuple[tuple[float, ...], ...]: st.lists(st.lists(st.floats(), max_size=3).map(tuple), max_size=3).map(tuple),
    tuple[float, float] | None: st.none() | st.tuples(st.floats(), st.floats()),
}


def rows_of(row_type: type[Row]) -> st.SearchStrategy[Row]:
    hints = get_type_hints(row_type)
    return st.builds(row_type, **{f.name: VALUES[hints[f.name]] for f in dataclasses.fields(row_type)})


def comparable(value: Any) -> Any:
    """The same with a word for every number that is not finite: JSON does not tell them apart, and nan != nan."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [comparable(item) for item in value]
    return "not finite" if isinstance(value, float) and not math.isfinite(value) else value


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(row=st.one_of([rows_of(row_type) for row_type in KINDS.values()]))
def test_every_row_comes_back(row: Row) -> None:
    line = write_row(row)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    json.loads(line, parse_constant=refuse)
    back = read_row(line)
    assert type(back) is type(row)
    assert comparable(dataclasses.asdict(back)) == comparable(dataclasses.asdict(row))


def test_rates_are_entries_of_the_row_and_a_loss_has_its_perplexity() -> None:
    line = write_row(TrainRow(step=3, loss=2.0, rates={"qk": 0.1}))
    fields = json.loads(line)
    assert fields["lr/qk"] == 0.1
    assert fields["perplexity"] == pytest.approx(math.e**2)
    assert fields["grad_norm"] is None
    assert json.loads(write_row(ValidationRow(step=3, loss=1e4, phase="final")))["perplexity"] is None


def test_an_undone_freeze_is_no_freeze() -> None:
    row = read_row('{"kind": "freeze_undone", "step": 4, "heads": 2, "held_out_losses": [1.0, 1.5]}')
    assert row == FreezeUndoneRow(step=4, heads=2, held_out_losses=(1.0, 1.5))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("3", "no JSON object with a kind"),
        ('{"kind": 3, "step": 1}', "no JSON object with a kind"),
        ('{"kind": "train"}', "a 'train' row has no step and no loss"),
        ('{"kind": "train", "step": -1, "loss": 1.0}', "the step of a 'train' row is '-1'"),
        ('{"kind": "train", "step": true, "loss": 1.0}', "the step of a 'train' row is 'True'"),
        (
            '{"kind": "validation", "step": 1, "loss": "low", "phase": "final"}',
            "the loss of a 'validation' row is 'low'",
        ),
        ('{"kind": "circuits", "step": 1, "qk_update": 1}', "the qk_update of a 'circuits' row is '1'"),
        ('{"kind": "freeze", "step": 1, "heads": 2, "seconds": [1]}', "the seconds of a 'freeze' row"),
        ('{"kind": "freeze", "step": 1, "heads": 2, "held_out_losses": [1]}', "the held_out_losses of a 'freeze' row"),
    ],
)
def test_what_is_wrong_with_a_line(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_row(line)


def test_unknown_kinds_and_fields() -> None:
    assert read_row('{"kind": "weather", "rain": 1}') == UnknownRow(kind="weather", fields={"rain": 1})
    row = read_row('{"kind": "train", "step": 1, "loss": 2, "rain": 1}')
    assert isinstance(row, TrainRow)
    assert (row.step, row.loss) == (1, 2.0)


def test_perplexity() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(1e9) == math.inf
    assert math.isnan(perplexity(math.nan))
