"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): questions whose answers are spans of a paragraph.

A question of the training set has one answer, one of the development set several, often the same span twice. Version
2.0 adds questions without an answer (`is_impossible`); their `plausible_answers` are no answers. `answer_start` counts
characters. A span need not end where a token of some tokenizer ends: `tokens_of_span` takes every token it touches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from saf_titan.analysis.tasks.example import Example
from saf_titan.analysis.tasks.files import entry, read_json

UNANSWERABLE = "[none]"
"""The label of a question without an answer."""
QUESTION, ANSWER = "[question]", "[answer]"
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a paragraph."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...]
    """(first character in the context, text) of each answer, without repetitions; empty if there is none."""


def read_questions(path: str | Path) -> Iterator[Question]:
    """Yield all questions of a file of version 1.1 or 2.0, in order.

    Raises ValueError, naming file and question, for a file of another form, an answer that is not where `answer_start`
    says, and a question without an answer that is not marked as impossible.
    """
    for article in entry(read_json(path), "data", list, str(path)):
        for paragraph in entry(article, "paragraphs", list, str(path)):
            context = entry(paragraph, "context", str, str(path))
            for question in entry(paragraph, "qas", list, str(path)):
                name = str(question.get("id", ""))
                where = f"{path}: question {name}"
                is_impossible = question.get("is_impossible", False)
                found = dict.fromkeys(
                    (entry(answer, "answer_start", int, where), entry(answer, "text", str, where))
                    for answer in ([] if is_impossible else entry(question, "answers", list, where))
                )
                for start, text in found:
                    if not text or context[start : start + len(text)] != text:
                        raise ValueError(f"{where}: the context does not have {text[:40]!r} at character {start}")
                if not found and not is_impossible:
                    raise ValueError(f"{where}: it has no answer and is not marked as impossible")
                asked = entry(question, "question", str, where)
                yield Question(id=name, question=asked, context=context, answers=tuple(found))


def tokens_of_span(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> list[bool]:
    """Mark the tokens that touch the characters start <= c < stop.

    offsets: (first, end) of each token in characters, as a tokenizer gives them. A token of no characters, as special
    tokens are, touches nothing. A span that a tokenizer cuts in the middle of a token takes that whole token.
    """
    return [first < stop and start < end and first < end for first, end in offsets]


def read_squad(path: str | Path) -> Iterator[Example]:
    """Yield each question as words: context, question; the label is the first word of the first answer, lower case.

    Relevant are the words of the context that any answer touches; none for a question without an answer, whose label is
    `UNANSWERABLE`. Words are runs of letters and digits, or single signs.
    """
    for question in read_questions(path):
        found = list(_WORD.finditer(question.context))
        offsets = [match.span() for match in found]
        spans = [tokens_of_span(offsets, start, start + len(text)) for start, text in question.answers]
        relevant = [any(marks) for marks in zip(*spans, strict=True)] if spans else [False] * len(found)
        asked = [word.lower() for word in _WORD.findall(question.question)]
        label = UNANSWERABLE
        if spans and any(spans[0]):
            label = found[spans[0].index(True)][0].lower()
        yield Example(
            words=(*(match[0].lower() for match in found), QUESTION, *asked, ANSWER),
            relevant=(*relevant, *([False] * (len(asked) + 2))),
            label=label,
        )
