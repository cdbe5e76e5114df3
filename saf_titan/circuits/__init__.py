"""Learning rates per circuit: which parameters, which schedule, which optimizer groups."""

from saf_titan import compat as compat  # before any other torchtitan module
