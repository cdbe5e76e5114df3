"""Options that several commands of the analysis have, and how their values are read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated

from saf_titan.fields.command_line import value_of
from saf_titan.fields.ranges import NOT_NEGATIVE, POSITIVE, Range

COUNT, WHOLE = value_of(Annotated[int, POSITIVE]), value_of(Annotated[int, NOT_NEGATIVE])
_AT_LEAST_4 = value_of(Annotated[int, Range(low=4)])
SHARE = value_of(Annotated[float, Range(above=0.0, high=1.0)])


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def shares(text: str) -> tuple[float, ...]:
    return tuple(SHARE(part) for part in text.split(","))


def layers(text: str) -> tuple[int, ...]:
    """Layers as "0,3,6-11": numbers and ranges, both ends included."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        bounds = (WHOLE(first), WHOLE(last or first))
        if bounds[0] > bounds[1]:
            raise argparse.ArgumentTypeError(f"{part!r} goes from a later layer to an earlier one")
        found += range(bounds[0], bounds[1] + 1)
    return tuple(sorted(set(found)))


def add_model(command: argparse.ArgumentParser, *, sequences: int, length: int) -> None:
    command.add_argument("model", type=Path, metavar="MODEL")
    command.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    command.add_argument(
        "--layers",
        type=layers,
        default=(),
        metavar="N,A-B,...",
        help="layers to measure, counted from 0, for example 0,6-11; default: all",
    )
    add_measurement(command, sequences=sequences, length=length)


def add_measurement(command: argparse.ArgumentParser, *, sequences: int, length: int) -> None:
    command.add_argument(
        "--sequences",
        type=COUNT,
        default=sequences,
        metavar="N",
        help=f"number of sequences, spread over the text; default: {sequences}",
    )
    command.add_argument(
        "--length", type=_AT_LEAST_4, default=length, metavar="T", help=f"tokens of each sequence; default: {length}"
    )
    command.add_argument(
        "--behind-norm",
        action="store_true",
        help="measure contributions behind the norm that follows the heads (Gemma, OLMo 2)",
    )
    command.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="default: float32")
    command.add_argument("--config", type=Path, metavar="FILE", help="TOML file of a run; default: the run's own")
    command.add_argument("--tokenizer", metavar="NAME|FILE", help="tokenizer of a run; default: that of its corpus")
