"""A run whose clock goes on by so much at every look: ``python -m tests.e2e.clocked SECONDS ARGUMENT ...``.

The arguments are the trainer's.
"""

from __future__ import annotations

import sys
from itertools import count

from saf_titan.run.leave import leave
from saf_titan.run.time_budget import RunClock
from saf_titan.train import main

if __name__ == "__main__":
    defaults = RunClock.__init__.__kwdefaults__
    assert defaults is not None
    defaults["clock"] = count(0.0, float(sys.argv[1])).__next__
    leave(main(sys.argv[2:]))
