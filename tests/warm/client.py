"""Stands for a Python interpreter, and asks the server for a process that has imported torch already.

    python -IS client.py SOCKET [-u] [-W FILTER] (-m MODULE | -c CODE | FILE) [ARGUMENT ...]

It gives the server its words, environment, folder, limits and streams, passes on signals, and ends as the process did.
If it is killed, the server kills the process. It imports little, because it starts for every process.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(address: str, words: list[str]) -> int:
    """Returns the exit status of the process; a process that a signal has ended is followed."""
    # a signal that comes before there is a process to pass it to has to wait
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    request = {
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
        "file_size": resource.getrlimit(resource.RLIMIT_FSIZE),
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"streams"], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        answers = server.makefile("r")
        process = int(answers.readline())
        for number in PASSED_ON:
            signal.signal(number, lambda number, frame: pass_on(process, number))
        # how `family` in tests/e2e/runs.py finds the process of this one
        with open("/proc/self/comm", "w") as name:  # noqa: PTH123
            name.write(f"for {process}")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        status = int(answers.readline())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def pass_on(process: int, number: int) -> None:
    # it may have ended, with its status on the way
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
