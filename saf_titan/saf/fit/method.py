"""Names of the methods of the fit, in a file of their own: the configuration reads them and must not import torch."""

from __future__ import annotations

from typing import Literal

FitMethod = Literal["lbfgs", "ipf", "adam400"]
