"""The command `interventions` goes on after a signal that ended its process; its tables are those of a whole run."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import islice
from pathlib import Path

import pytest

from saf_titan.analysis.intervention_results import FILES, STORE
from tests.hf.test_commands import TEXT, write_model
from tests.warm.python import ROOT, environment, warm_python

SEQUENCES = 60
WORDS = [
    *("--sequences", str(SEQUENCES), "--length", "16", "--positions", "4", "--batch-size", "1"),
    *("--metrics", "attention,random", "--seeds", "2", "--ways", "edge", "--shares", "0.2"),
]
TELLING = """
import os, sys
from saf_titan.analysis import __main__ as analysis
from saf_titan.analysis.stored_rows import StoredRows

def add(store, row, add=StoredRows.add):
    add(store, row)
    print(os.getpid(), file=sys.stderr, flush=True)

StoredRows.add = add
sys.exit(analysis.main())
"""
"""The command, which also writes its process number whenever a sequence is done."""


def command(folder: Path, out: Path, *python: str) -> list[str]:
    words = ["interventions", str(folder / "model"), "--text", str(folder / "text.txt"), "--out", str(out)]
    return [warm_python(), *python, *words, *WORDS]


def finished(words: list[str]) -> tuple[str, str]:
    """What the command wrote to standard output and to standard error."""
    ended = subprocess.run(words, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a text, and in `whole` the results of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("signals")
    write_model(folder / "model")
    (folder / "text.txt").write_text(TEXT)
    tables, _ = finished(command(folder, folder / "whole", "-m", "saf_titan.analysis"))
    (folder / "tables").write_text(tables)
    return folder


@pytest.mark.parametrize(
    ("number", "status", "message"),
    [
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGTERM, -signal.SIGTERM, ""),
        (signal.SIGINT, 130, "keeps the sequences that are done; the same command goes on from there"),
    ],
    ids=["kill", "term", "int"],
)
def test_the_same_command_finishes_what_a_signal_stopped(
    folder: Path, tmp_path: Path, number: signal.Signals, status: int, message: str
) -> None:
    with subprocess.Popen(
        command(folder, tmp_path, "-c", TELLING), env=environment(), cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = (line for line in process.stderr if line.strip().isdigit())
        # the work on the other sequences goes on while the signal is on its way
        *_, worker = islice(told, 3)
        os.kill(int(worker), number)
        said = process.stderr.read()
    assert process.returncode == status, said
    assert message in said
    assert not any((tmp_path / name).exists() for name in FILES)
    done = (tmp_path / STORE).read_text().count("\n") - 1
    assert 3 <= done < SEQUENCES

    tables, said = finished(command(folder, tmp_path, "-m", "saf_titan.analysis"))
    assert f"has the results of {done} sequences of {SEQUENCES}" in said
    assert tables == (folder / "tables").read_text()
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (folder / "whole" / name).read_bytes()
