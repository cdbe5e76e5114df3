"""Train a decoder, freeze heads on the way, resume: ``python -m saf_titan.train --config FILE [--section.key value]``.

Under torchrun every rank runs this file; without it one process is started. A folder that already holds checkpoints is
resumed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from saf_titan.config import COMMAND_LINE, ConfigError, Problem, help_text, load_config
from saf_titan.run.leave import leave

USER_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (2 for what the user can mend, with one message and no trace)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments or "-h" in arguments:
        print(help_text())
        return 0
    dry_run = "--dry-run" in arguments
    if dry_run:
        arguments.remove("--dry-run")
    try:
        path, overrides = _split(arguments)
        run = load_config(path, overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USER_ERROR

    # heavy imports only now: help and errors of the configuration are instant
    if dry_run:
        from saf_titan.run.dry_run import describe

        try:
            print(describe(run))
        except ConfigError as error:
            print(error, file=sys.stderr)
            return USER_ERROR
        return 0
    from saf_titan.run.launch import launch

    return launch(run)


def _split(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """Take ``--config FILE`` or ``--config=FILE`` out of the arguments."""
    overrides = []
    path = None
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--config":
            value = next(remaining, None)
            if value is None:
                raise ConfigError([Problem(COMMAND_LINE, "--config", "", "needs the path of a TOML file")])
            path = Path(value)
        elif argument.startswith("--config="):
            path = Path(argument.removeprefix("--config="))
        else:
            overrides.append(argument)
    return path, overrides


if __name__ == "__main__":
    leave(main())
