"""Names of the methods of the fit. A file of its own because the configuration reads them, which imports no torch."""

from __future__ import annotations

from typing import Literal

FitMethod = Literal["lbfgs", "ipf", "adam400"]
