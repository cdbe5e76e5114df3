"""Read a TOML file as a dict, or report why it cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli

from saf_titan.config.packaged import FOLDER, packaged_names
from saf_titan.fields.errors import Problem, nearest


def read_toml(path: Path, problems: list[Problem], packaged_in: Path = FOLDER) -> dict[str, Any]:
    """Return the values of a file. If it cannot be read, add the reason to `problems` and return an empty dict.

    packaged_in: folder of the files whose names are suggested in place of a file that does not exist.
    """
    source = str(path)
    try:
        # an editor's byte order mark is no part of the text
        return tomli.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        beside = {other.name: str(other) for other in path.parent.glob("*.toml")}
        packaged = {f"{name}.toml": name for name in packaged_names(packaged_in)}
        match = nearest(f"{path.name.removesuffix('.toml')}.toml", known := packaged | beside)
        hint = f"did you mean {known[match]}?" if match else f"the package comes with {', '.join(packaged.values())}"
        problems.append(Problem(source, "", "", f"no such file; {hint}"))
    except OSError as error:
        problems.append(Problem(source, "", "", f"cannot be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(source, "", "", f"is not UTF-8 (byte {error.start})"))
    except tomli.TOMLDecodeError as error:
        problems.append(Problem(source, "", "", f"is not TOML: {error}"))
    except RecursionError:
        problems.append(Problem(source, "", "", "is nested too deeply"))
    return {}
