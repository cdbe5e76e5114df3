"""Shared by the command lines: options are read as values of the configuration, mistakes reported in one line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from saf_titan.fields.convert import Mismatch, convert, describe, takes_text
from saf_titan.fields.places import require_input, require_input_file


class Parser(argparse.ArgumentParser):
    """Raises ValueError for a mistake on the command line, like for every other mistake, instead of exiting.

    The parsed arguments have an additional attribute, `defaults`: the default value of every option.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        parsed, rest = super().parse_known_args(args, namespace)
        # the parser of a subcommand is called before the main one returns, and only it knows the options
        if not hasattr(parsed, "defaults"):
            parsed.defaults = {name: self.get_default(name) for name in vars(parsed)}
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.prog} --help lists what is allowed")


def value_of(hint: object) -> Callable[[str], Any]:
    """Return a function that reads one word as a value of type `hint` and checks its range, for `add_argument`."""

    def read(text: str) -> Any:
        try:
            return convert(text if takes_text(hint) else json.loads(text), hint)
        except ValueError as error:
            message = str(error) if isinstance(error, Mismatch) else f"must be {describe(hint)}"
            raise argparse.ArgumentTypeError(f"{text!r} {message}") from error

    return read


def input_file(needed: str) -> Callable[[str], Path]:
    """Return a reader of one word as a file that can be read, so that a missing one is known before any work.

    needed: what to give, for the error, such as "a UTF-8 text".
    """
    return lambda text: _input(text, partial(require_input_file, needed=needed))


def input_place(needed: str) -> Callable[[str], Path]:
    """Return a reader of one word as a file or a folder that can be read; see `input_file`."""
    return lambda text: _input(text, partial(require_input, needed=needed))


def _input(text: str, require: Callable[[Path], None]) -> Path:
    path = Path(text)
    try:
        require(path)
    except ValueError as error:
        # argparse puts the name of the option before it
        raise argparse.ArgumentTypeError(str(error)) from error
    return path


def note_unused(args: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Print one line that lists the options out of `names` that were changed from their default but have no effect.

    names: attributes of `args`, which a `Parser` made; reason: why they have no effect, as the end of the sentence.
    """
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) != args.defaults[name]]
    if given:
        print(f"note: {', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {reason}", file=sys.stderr)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Call the function `run` of the chosen command and return its exit status.

    What the user can correct becomes one line on stderr and status 2. Ctrl-C gives status 130, as in shells.
    """
    try:
        args = parser.parse_args(argv)
        status: int = args.run(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return status
