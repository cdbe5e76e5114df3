"""HateXplain: posts with the labels and rationales of three annotators (Mathew et al. 2021), `dataset.json`.

The file maps post ids to `post_tokens`, `annotators` (each with a `label`) and `rationales`: 0/1 lists, one for each
annotator who marked words. Annotators who call a post normal mark none, so there are fewer lists than annotators, and
none at all for most normal posts. A post has the label of the majority; the authors leave out posts where all three
differ, and so does this reader. A word is relevant if at least half of the lists that there are mark it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saf_titan.analysis.tasks.example import Example
from saf_titan.analysis.tasks.files import entry, read_json

QUERY = "[label]"
"""The word at the end of each example, where the label is predicted."""


def read_hatexplain(path: str | Path) -> Iterator[Example]:
    """Yield the posts on whose label at least two annotators agree.

    Raises ValueError, naming file and post, for a file of another form: also for a rationale whose length differs from
    the number of tokens.
    """
    posts = read_json(path)
    if not isinstance(posts, dict):
        raise ValueError(f"{path}: expected an object that maps post ids to posts; give HateXplain's dataset.json")
    for name, post in posts.items():
        where = f"{path}: post {name}"
        words = entry(post, "post_tokens", list, where)
        labels = [entry(one, "label", str, where) for one in entry(post, "annotators", list, where)]
        (label, votes), *_ = Counter(labels).most_common(1) or [("", 0)]
        if not words or (votes < 2 and len(labels) > 1):
            continue
        relevant = _majority(entry(post, "rationales", list, where), len(words), where)
        yield Example(words=(*words, QUERY), relevant=(*relevant, False), label=label)


def _majority(rationales: list[Any], num_words: int, where: str) -> list[bool]:
    for rationale in rationales:
        if not isinstance(rationale, list) or len(rationale) != num_words:
            raise ValueError(f"{where}: a rationale must have one number for each of the {num_words} tokens")
    return [2 * sum(bool(r[word]) for r in rationales) >= len(rationales) > 0 for word in range(num_words)]
