"""ERASER (DeYoung et al. 2020): `train.jsonl`, `val.jsonl`, `test.jsonl` beside a folder `docs`.

A line is an annotation: `classification`, `query` (may be empty or null) and `evidences`, a list of groups of spans.
A span has `docid`, `start_token` and `end_token` (end excluded), counted in words of the document, which is a text file
with one sentence a line. Several groups are alternatives, each enough by itself; a word is relevant if any marks it. A
document without evidence is that of `docids`, or the one that the annotation is named after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saf_titan.analysis.tasks.example import Example
from saf_titan.analysis.tasks.files import entry

QUERY = "[query]"
"""The word between the documents and the query; the label is predicted after the last word."""


def read_eraser(path: str | Path) -> Iterator[Example]:
    """Yield the annotations of a file: the words of its documents, `QUERY`, the words of the query.

    Raises ValueError, naming file, line and what is wrong with it, for a damaged line, a document that is not there and
    a span outside of its document.
    """
    path = Path(path)
    documents: dict[str, list[str]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                annotation = json.loads(line)
            except ValueError:
                raise ValueError(f"{where}: it is no JSON") from None
            yield _example(annotation, path.parent / "docs", documents, where)


def _example(annotation: Any, folder: Path, documents: dict[str, list[str]], where: str) -> Example:
    label = entry(annotation, "classification", str, where)
    spans = [span for group in entry(annotation, "evidences", list, where) for span in group]
    names = list(dict.fromkeys(entry(span, "docid", str, where) for span in spans))
    if not names:
        names = annotation.get("docids") or [entry(annotation, "annotation_id", str, where)]
    words: list[str] = []
    relevant: list[bool] = []
    for name in names:
        if name not in documents:
            try:
                documents[name] = (folder / name).read_text(encoding="utf-8").split()
            except OSError:
                raise ValueError(f"{where}: the document {name} is not in {folder}") from None
        marks = [False] * len(documents[name])
        for span in spans:
            if span["docid"] == name:
                start, stop = (entry(span, key, int, where) for key in ("start_token", "end_token"))
                if not 0 <= start < stop <= len(marks):
                    raise ValueError(
                        f"{where}: words {start} to {stop} are not in {name}, which has {len(marks)} words"
                    )
                marks[start:stop] = [True] * (stop - start)
        words += documents[name]
        relevant += marks
    query = (annotation.get("query") or "").split()
    return Example(words=(*words, QUERY, *query), relevant=(*relevant, *([False] * (len(query) + 1))), label=label)
