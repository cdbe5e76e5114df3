"""Keep the finished parts of a long measurement in a file, so that an interrupted measurement can go on.

The file has one line of JSON for the settings of the measurement, then one line for each finished part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from saf_titan.saf.container import write_file


class StoredRows:
    """The finished parts of a measurement, each a JSON object; in a file as well if there is a path."""

    def __init__(
        self,
        path: Path | None,
        header: Mapping[str, Any],
        *,
        what: str,
        check: Callable[[Any], object],
        differences: Mapping[str, str],
        remedy: str,
    ) -> None:
        """Read the rows of an earlier measurement, or begin a file.

        Args:
            path: the file; None keeps the rows in memory only.
            header: the settings that results depend on, as values of JSON. A single number that is not whole may differ
                by what another number of threads makes of a sum.
            what: what the rows are, for errors, such as "replacement losses".
            check: called with each row that the file has; raises ValueError, KeyError or TypeError for a damaged one.
            differences: how an error names a setting that differs, such as {"text": "another text"}.
            remedy: what the user can do if the file cannot be used, as the end of an error.

        Raises ValueError if the file has rows of other settings, or something else than such rows. The file is then
        left as it is. A last line without its end is dropped: its process ended while it wrote the line.
        """
        self._path = path
        self.rows: list[dict[str, Any]] = []
        # as JSON gives them back: tuples become lists
        header = json.loads(json.dumps(dict(header)))
        if path is None:
            return
        if not path.exists():
            write_file(path, (json.dumps(header) + "\n").encode())
            return
        whole_lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
        try:
            found, *rows = [json.loads(line) for line in whole_lines]
            differing = [name for name, value in header.items() if not _same(found.get(name), value)]
            for row in rows if not differing else ():
                check(row)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no file of {what} ({error}); {remedy}") from error
        if differing:
            name = differing[0]
            raise ValueError(
                f"{path} is of {differences.get(name, f'another {name}')}: {found.get(name)!r}, and here "
                f"{header[name]!r}; {remedy}"
            )
        self.rows = rows
        write_file(path, "".join(line + "\n" for line in whole_lines).encode())

    def add(self, row: dict[str, Any]) -> None:
        """Keep one more row; when the call returns, the file has it."""
        self.rows.append(row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=_ROUNDING)
    return bool(before == now)


_ROUNDING = 1e-5
