"""What the command lines on files share: options read as values of the configuration, and one line for a mistake."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from saf_titan.fields.convert import Mismatch, convert, describe, takes_text


class Parser(argparse.ArgumentParser):
    """Reports a mistake on the command line as every other mistake is reported: by a ValueError."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.prog} --help shows what there is")


def value_of(hint: object) -> Callable[[str], Any]:
    """Return a reader of one word as a value of the configuration's type `hint`, ranges included."""

    def read(text: str) -> Any:
        try:
            return convert(text if takes_text(hint) else json.loads(text), hint)
        except ValueError as error:
            message = str(error) if isinstance(error, Mismatch) else f"must be {describe(hint)}"
            raise argparse.ArgumentTypeError(f"{text!r} {message}") from error

    return read


def run_command(parser: argparse.ArgumentParser, argv: list[str] | None) -> int:
    """Call the function `run` of the chosen command; after one line, return 2 for whatever the user can mend."""
    try:
        args = parser.parse_args(argv)
        status: int = args.run(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status
