"""Subject-verb agreement of Linzen, Dupoux and Goldberg (2016), `agr_50_mostcommon_10K.tsv` and its like.

A tab-separated file with a header. Columns that are read: `sentence` (words divided by spaces), `verb_index` and
`subj_index` (counted from 1, with the word they count), `verb_pos` (VBZ: singular, VBP: plural). Other columns may be
missing, and files from the web may be gzipped (.gz). The example is the sentence before the verb; the relevant word is
the head of the subject.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

from saf_titan.analysis.tasks.example import Example

LABELS = {"VBZ": "singular", "VBP": "plural"}
QUERY = "[verb]"
_COLUMNS = ("sentence", "verb_index", "subj_index", "verb_pos")


def read_sva(path: str | Path) -> Iterator[Example]:
    """Yield the sentences of a file; those whose subject follows the verb, which a decoder has not read, are left out.

    Raises ValueError, naming file and line, for a missing column, an index outside of the sentence, and a verb that is
    neither VBZ nor VBP.
    """
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        # quotation marks are words here, not quotes
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}: the header has no {', '.join(missing)}; give a tsv of the agreement data")
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            words = (row["sentence"] or "").split()
            verb, subject = (_index(row[name], name, len(words), where) for name in ("verb_index", "subj_index"))
            label = LABELS.get(row["verb_pos"] or "")
            if label is None:
                raise ValueError(f"{where}: verb_pos is {row['verb_pos']!r}, expected VBZ or VBP")
            if subject >= verb:
                continue
            yield Example(
                words=(*words[:verb], QUERY), relevant=tuple(index == subject for index in range(verb + 1)), label=label
            )


def _index(text: str | None, name: str, num_words: int, where: str) -> int:
    """Position in the sentence, counted from 0."""
    if text is None or not text.isdecimal() or not 1 <= int(text) <= num_words:
        raise ValueError(
            f"{where}: {name} is {text!r}, expected a number from 1 to the {num_words} words of the sentence"
        )
    return int(text) - 1
