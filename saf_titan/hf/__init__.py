"""Hugging Face models with static heads. The import registers them with transformers' Auto classes.

This package needs the extra ``hf``: ``pip install 'saf_titan[hf]'``.
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
