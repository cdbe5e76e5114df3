"""What the command lines on files share: options read as values of the configuration, and one line for a mistake."""

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
    """Reports a mistake on the command line as every other mistake is reported: by a ValueError.

    The parsed arguments have one attribute more, `defaults`: the values of options that were not given.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        parsed, rest = super().parse_known_args(args, namespace)
        # the parser of a subcommand comes first, and it knows the options
        if not hasattr(parsed, "defaults"):
            parsed.defaults = {name: self.get_default(name) for name in vars(parsed)}
        return parsed, rest

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
    """Say in one line which of the options `names` were given another value than their default without any effect.

    names: attributes of `args`, which a `Parser` made; reason: why they have no effect, as the end of a sentence.
    """
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) != args.defaults[name]]
    if given:
        print(f"note: {', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {reason}", file=sys.stderr)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Call the function `run` of the chosen command and return its status.

    After one line, return 2 for whatever the user can mend, and 130, as shells have it, for Ctrl-C.
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
