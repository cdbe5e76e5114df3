"""The readers by the names of their tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from saf_titan.analysis.tasks.eraser import read_eraser
from saf_titan.analysis.tasks.example import Example
from saf_titan.analysis.tasks.hatexplain import read_hatexplain
from saf_titan.analysis.tasks.squad import read_squad
from saf_titan.analysis.tasks.sva import read_sva

READERS: Mapping[str, Callable[[str | Path], Iterator[Example]]] = {
    "sva": read_sva,
    "squad": read_squad,
    "hatexplain": read_hatexplain,
    "eraser": read_eraser,
}
