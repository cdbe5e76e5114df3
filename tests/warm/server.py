"""Forks Python processes from one that has imported torch, the trainer and the other packages already.

    python -m tests.warm.server FOLDER OWNER

A fresh Python takes about ten seconds of processor time to import them, for every rank of every run. It answers
`client.py` at FOLDER/socket until the process OWNER has ended. A process that it forks has the words, environment,
folder, limits and streams of its client, and runs its module, code or file as `__main__` from the beginning.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

AT_IMPORT = ("OMP_NUM_THREADS", "SAF_TITAN_DEVICE", "CUDA_VISIBLE_DEVICES")
"""Variables that act when torch or compat is imported, which is before a process has its own environment."""


def import_everything() -> None:
    """Import what processes of the tests import, early or late; no thread may start, because none survives a fork."""
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.distributed.checkpoint._fsspec_filesystem
    import torch.distributed.run
    import torch.utils.serialization  # noqa: F401

    import saf_titan.hf
    import saf_titan.report.write
    import saf_titan.run.launch
    import saf_titan.saf.__main__
    import saf_titan.study.__main__
    import saf_titan.train  # noqa: F401

    # after compat, which chooses the device
    import torchtitan.trainer  # isort: skip

    # rank 0 sleeps two seconds at its end, for the others to leave a store that it may be the host of; here it never is
    torchtitan.trainer.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})  # type: ignore[assignment]

    # pyarrow's allocator has a thread of its own, and goes on without it in a forked process
    threads = {
        (task / "comm").read_text() for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())
    }
    assert threads <= {"jemalloc_bg_thd\n"}, threads


@dataclass
class Child:
    """A process and the connection to its client."""

    process: int
    handle: int
    client: socket.socket


class Server:
    """Starts processes on request. ``serve`` returns in a new process alone, with what it shall run."""

    def __init__(self, folder: Path, owner: int) -> None:
        self._executable = str(folder / "python")
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._owner = os.pidfd_open(owner)
        # nobody finds the socket before it listens
        self._listener.bind(str(folder / "socket.new"))
        self._listener.listen(64)
        (folder / "socket.new").rename(folder / "socket")
        self._selector.register(self._listener, selectors.EVENT_READ, self._start)
        self._selector.register(self._owner, selectors.EVENT_READ, self._leave)

    def serve(self) -> list[str]:
        """Answer clients; returns the words of a process in that process."""
        while True:
            for key, _ in self._selector.select():
                words = key.data()
                if words is not None:
                    return words

    def _start(self) -> list[str] | None:
        client, _ = self._listener.accept()
        _, streams, _, _ = socket.recv_fds(client, len(b"streams"), 3)
        with client.makefile("rb") as requests:
            line = requests.readline()
        if not line or len(streams) < 3:
            client.close()
            return None
        process = os.fork()
        if process == 0:
            self._forget()
            client.close()
            return self._become(json.loads(line), streams)
        for stream in streams:
            os.close(stream)
        child = Child(process, os.pidfd_open(process), client)
        self._selector.register(child.handle, selectors.EVENT_READ, lambda: self._end(child))
        self._selector.register(client, selectors.EVENT_READ, lambda: self._kill(child))
        with contextlib.suppress(OSError):
            client.sendall(f"{process}\n".encode())
        return None

    def _end(self, child: Child) -> None:
        """The process has ended: tell its client how."""
        _, status = os.waitpid(child.process, 0)
        self._selector.unregister(child.handle)
        os.close(child.handle)
        if child.client.fileno() >= 0:
            self._selector.unregister(child.client)
            # it may have been killed in the same moment
            with contextlib.suppress(OSError):
                child.client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            child.client.close()

    def _kill(self, child: Child) -> None:
        """The client has ended before its process."""
        if child.client.fileno() < 0:
            return  # both ended in the same moment
        signal.pidfd_send_signal(child.handle, signal.SIGKILL)
        self._selector.unregister(child.client)
        child.client.close()

    def _leave(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int) and key.fileobj != self._owner:
                signal.pidfd_send_signal(key.fileobj, signal.SIGKILL)
        os._exit(0)

    def _forget(self) -> None:
        for key in list(self._selector.get_map().values()):
            os.close(key.fileobj) if isinstance(key.fileobj, int) else key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _become(self, request: dict[str, Any], streams: list[int]) -> list[str]:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        environment = request["environment"]
        for name in AT_IMPORT:
            wanted, here = environment.get(name), os.environ.get(name)
            assert wanted in (None, here), f"{name} was {here!r} when torch was imported and cannot become {wanted!r}"
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(request["folder"])
        resource.setrlimit(resource.RLIMIT_FSIZE, request["file_size"])
        # what runs through sys.executable, such as the ranks of torchrun and the runs of a study, is forked too
        sys.executable = self._executable
        return list(request["words"])


def run(words: list[str]) -> None:
    """Run a module, code or a file, as the interpreter does with these words."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    while words[0] in ("-u", "-W"):
        if words.pop(0) == "-u":
            unbuffered = True
        else:
            warnings._setoption(words.pop(0))  # type: ignore[attr-defined]
    if unbuffered:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    what, *arguments = words
    if what in ("-m", "-c"):
        name, *arguments = arguments
        sys.path[0] = str(Path.cwd()) if what == "-m" else ""
    else:
        assert not what.startswith("-"), f"{what} is no option of this stand-in for Python"
        sys.path[0] = str(Path(what).resolve().parent)
    sys.argv = [what, *arguments]
    if what == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif what == "-c":
        exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    # what a shell starts in the background ignores the interrupt; an interpreter of its own would not
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import_everything()
    # children look at none of these objects again, and write to none of their pages
    gc.collect()
    gc.freeze()
    words = Server(Path(sys.argv[1]), int(sys.argv[2])).serve()
    # a process of its own: it ends as any interpreter does
    run(words)
