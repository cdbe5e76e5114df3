"""Hugging Face models with static heads. Importing this package makes transformers know them.

Needs the extra ``hf`` of this package.
"""

from __future__ import annotations

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError("saf_titan.hf needs transformers: pip install 'saf_titan[hf]'") from error

from saf_titan.hf.attention import ATTENTION
from saf_titan.hf.model import load, register

register()

__all__ = ["ATTENTION", "load"]
