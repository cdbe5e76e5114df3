"""The configurations that are installed with the package, found by name: ``--config debug_cpu``; studies too."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "configs"
"""Configurations of runs."""

STUDIES = FOLDER / "studies"
"""Studies, see ``saf_titan.study``."""


def packaged_names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names of the configurations that come with the package, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def find_config(path: Path, folder: Path = FOLDER) -> Path:
    """Return the file that a user means by ``path``: the file itself, or the packaged configuration of that name.

    A file that exists comes first. A bare name such as ``debug_cpu`` or ``debug_cpu.toml`` names a packaged
    configuration. Any other path is returned unchanged; reading it reports that there is no such file.
    """
    packaged = folder / f"{path.name.removesuffix('.toml')}.toml"
    if path.is_file() or path.name != str(path) or not packaged.is_file():
        return path
    return packaged
