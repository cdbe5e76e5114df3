"""One process at a time in a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from saf_titan.run.lock import lock


def test_a_second_run_is_kept_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with lock(folder):
        code = f"from pathlib import Path; from saf_titan.run.lock import lock; lock(Path({str(folder)!r}))"
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert second.returncode != 0
        assert f"{folder} is in use by another run (process " in second.stderr
        assert "give another --dump_folder" in second.stderr
    lock(folder).close()


def test_locks_of_different_names_do_not_meet(tmp_path: Path) -> None:
    with lock(tmp_path), lock(tmp_path, ".other"):
        pass
