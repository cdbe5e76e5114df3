"""Load the weights of a transformers model, and stop if some are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from logging import LogRecord
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.utils import logging


def read_complete(name: str | Path, read: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """Return the model that ``read`` loads with ``settings``; log a warning if files have weights that it does not use.

    Args:
        name: the folder or file, for messages.
        read: a ``from_pretrained`` of transformers that already knows what to load.
        settings: further arguments of `read`, such as ``dtype``.

    Raises ValueError for a damaged file, and if weights are missing or have another shape: transformers would fill
    these with random numbers.
    """
    logger = logging.get_logger("transformers.modeling_utils")
    logger.addFilter(_is_no_load_report)
    try:
        model, found = read(**{**settings, "output_loading_info": True, "ignore_mismatched_sizes": True})
    except SafetensorError as error:
        raise ValueError(f"{name}: the weights are damaged or cut short ({error}); copy the files again") from error
    finally:
        logger.removeFilter(_is_no_load_report)
    # a weight of another shape is listed as its name, or as its name and both shapes
    misshapen = [key if isinstance(key, str) else key[0] for key in found["mismatched_keys"]]
    if lacking := sorted([*found["missing_keys"], *misshapen]):
        raise ValueError(
            f"{name} lacks weights of {type(model).__name__}, or has them in another shape: {_some(lacking)}; its "
            "config.json must be that of its weights"
        )
    if unused := sorted(found["unexpected_keys"]):
        logger.warning(f"{name} has weights that {type(model).__name__} does not use: {_some(unused)}")
    return model


def _is_no_load_report(record: LogRecord) -> bool:
    """Return False for transformers' report of the weights: a table of many lines, for which we print one line."""
    return "LOAD REPORT" not in record.getMessage()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
