"""Arguments that the commands of `python -m saf_titan.hf` share: readers of numbers, and the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from saf_titan.fields.command_line import value_of
from saf_titan.fields.ranges import Range
from saf_titan.fields.step_folders import is_complete
from saf_titan.hf.model import load

POSITIVE = value_of(Annotated[float, Range(above=0.0)])
AT_LEAST_0 = value_of(Annotated[int, Range(low=0)])
AT_LEAST_1 = value_of(Annotated[int, Range(low=1)])
AT_LEAST_2 = value_of(Annotated[int, Range(low=2)])


def open_model(name: str) -> Any:
    """Load the model in a folder or a .gguf file, in evaluation mode. Raises ValueError if there is none."""
    require_model(Path(name))
    return load(name).eval()


def require_model(path: Path, *, needed: str = "give the folder of a model, or a .gguf file") -> None:
    """Raise ValueError unless a path is a folder with a config.json or a .gguf file.

    needed: what to give instead, as the end of the message.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: {needed}")
    if path.is_dir() and not (path / "config.json").is_file():
        if is_complete(path) or (path / "config.toml").is_file():
            needed = "python -m saf_titan.hf export makes one of a checkpoint of this trainer, RUN/checkpoint/step-N"
        raise ValueError(f"{path} is no model of transformers (it has no config.json): {needed}")
    if path.is_file() and path.suffix != ".gguf":
        raise ValueError(f"{path} is no model of transformers: {needed}")
