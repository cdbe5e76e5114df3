"""Train a decoder and freeze heads on the way: ``python -m saf_titan.train --config FILE [--section.key value]``.

Under torchrun every rank runs this file; without torchrun the run has one process. A run whose folder already holds
checkpoints is resumed from the newest one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from saf_titan.config import (
    COMMAND_LINE,
    ConfigError,
    Problem,
    RunConfig,
    check_world_size,
    help_text,
    load_config,
    world_size_of,
)
from saf_titan.config.describe import EXAMPLES
from saf_titan.data.checks import inspect_data
from saf_titan.run.leave import leave

USER_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 2, with a message and no traceback, for a user's mistake."""
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
        world_size = world_size_of(os.environ)
        check_world_size(run, world_size)
        if dry_run:
            return _describe(run, world_size)
        # every rank of a machine would read the same files, so one compares them with their digests
        _, problems = inspect_data(run, world_size, digests=os.environ.get("LOCAL_RANK", "0") == "0")
        if problems:
            raise ConfigError(problems)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    # torch is imported only here, so that help and errors of the configuration or the data come at once
    from saf_titan.run.launch import launch

    return launch(run)


def _describe(run: RunConfig, world_size: int) -> int:
    """Print what the run would do and return the exit status; faults of the data are raised last, as a ConfigError."""
    from saf_titan.run.dry_run import describe

    lines, problems = inspect_data(run, world_size)
    try:
        text = describe(run, world_size, data_lines=lines or ["cannot be read: see the error below"])
    except ConfigError:
        raise
    except ValueError as error:
        # raised when the description builds the model, for faults that the checks of the configuration cannot see
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    print(text)
    if problems:
        raise ConfigError(problems)
    return 0


def _split(arguments: list[str]) -> tuple[Path, list[str]]:
    """Return the file of ``--config FILE`` or ``--config=FILE`` and the other arguments; ConfigError without one."""
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
    if path is None:
        names = ", ".join(name for name, _ in EXAMPLES)
        message = f"is missing: give the TOML file of a run, or a name such as {names}; --help lists every key"
        raise ConfigError([Problem(COMMAND_LINE, "--config", "", message)])
    return path, overrides


if __name__ == "__main__":
    leave(main())
