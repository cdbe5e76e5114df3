"""The Python that starts at once behaves as the interpreter that it stands for."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.warm.python import environment, warm_python


def run(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [warm_python(), *words],
        cwd=cwd,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_words_folder_environment_and_streams_are_those_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("NAME = 'neighbour'")
    code = "import os, sys, neighbour; print(__name__, neighbour.NAME, sys.argv[1:], os.getcwd(), os.environ['MARK'])"
    code += "\nprint('said', file=sys.stderr)"
    (tmp_path / "script.py").write_text(code)
    for words in (["-m", "script"], [str(tmp_path / "script.py")], ["-u", "-c", code]):
        ended = run(*words, "one", "--two", cwd=tmp_path, MARK="here")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == f"__main__ neighbour ['one', '--two'] {tmp_path} here\n"
        assert ended.stderr == "said\n"


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no such file')", 1, "no such file"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(3)", 3, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.abort()", -6, ""),
        ("import atexit, sys; atexit.register(print, 'at exit', file=sys.stderr)", 0, "at exit"),
    ],
)
def test_it_ends_as_the_process_does(code: str, status: int, message: str) -> None:
    ended = run("-c", code)
    assert ended.returncode == status, ended.stderr
    assert message in ended.stderr


def test_processes_that_it_starts_are_of_the_same_kind() -> None:
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import sys; sys.exit(5)']))"
    assert run("-c", code).returncode == 5


def test_what_was_imported_with_another_setting_is_refused() -> None:
    ended = run("-c", "print('ran')", OMP_NUM_THREADS="3")
    assert ended.returncode == 1
    assert "OMP_NUM_THREADS" in ended.stderr
    assert ended.stdout == ""


WAIT = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(4))
try:
    print(os.getpid(), flush=True)
    signal.pause()
except KeyboardInterrupt:
    sys.exit(5)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_signals_reach_the_process(number: signal.Signals) -> None:
    client = subprocess.Popen(
        [warm_python(), "-c", WAIT], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with client:
        assert client.stdout is not None
        process = os.pidfd_open(int(client.stdout.readline()))
        client.send_signal(number)
        # a pidfd is readable when its process has ended
        if not select.select([process], [], [], 100)[0]:
            client.kill()
        assert client.wait() == {signal.SIGTERM: 4, signal.SIGINT: 5, signal.SIGKILL: -9}[number]
        os.close(process)
