"""`python -m saf_titan.report RUN ...` is `python -m saf_titan.analysis report RUN ...`, in short."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["report"]
    runpy.run_module("saf_titan.analysis", run_name="__main__", alter_sys=True)
