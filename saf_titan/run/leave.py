"""How a process of a run ends."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import NoReturn

GRACE_SECONDS = 10


def leave(status: int) -> NoReturn:
    """End the process with an exit status but without Python's normal exit; call it when all files are closed.

    In the normal exit, on two busy cores, about one finished rank in fifty was aborted by torch's background threads
    (SIGABRT after the last line), which the launcher took for a failed run.

    With a non-zero status, every local rank except 0 first waits for 10 s. A launcher ends all ranks when one
    fails, and often shows only the output of rank 0, which so has time to log the error.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if status and os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(GRACE_SECONDS)
    os._exit(status)
