"""Readers of the official files of SST-2, BoolQ and QuALITY, as texts that end before a one-token answer.

The files are read as their authors publish them; a line that does not fit is one error with its file and number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Example:
    """One question: the text is ``passage + question``, the answer one of those of its task."""

    passage: str
    """What may be shortened, from its end, to make the text fit into the model."""
    question: str
    """Ends with a colon, behind which the answer is predicted."""
    answer: int
    """Index among the answers of the task."""
    place: str
    """File and line, for people."""
    hard: bool = False
    """QuALITY: readers with little time could not answer the question."""


@dataclass(frozen=True)
class AnswerTask:
    """A task of the published fine-tuning."""

    read: Callable[[Path], list[Example]]
    answers: tuple[str, ...]
    """The answers by their index, each with the space that stands before it."""
    length: int
    """The published limit of a text, in tokens."""


def read_sst2(path: Path) -> list[Example]:
    """``train.tsv`` or ``dev.tsv`` of SST-2 in GLUE: a header, then a sentence, a tab, and 0 (bad) or 1 (good).

    Quotes are part of a sentence, and the sentences of train.tsv end with a space, which is left out.
    """
    lines = _lines(path)
    _, header = next(lines, (0, ""))
    if header.rstrip("\r").split("\t") != ["sentence", "label"]:
        what = "the test split, which has no labels" if header.startswith("index\t") else "another file"
        raise ValueError(f"{path}: line 1 is {header[:80]!r}, expected sentence, a tab, label: this is {what}")
    examples = []
    for number, line in lines:
        sentence, tab, label = line.rstrip("\r").rpartition("\t")
        if not tab or "\t" in sentence or label not in ("0", "1") or not sentence.strip():
            raise ValueError(f"{path}: line {number} is {line[:80]!r}, expected a sentence, a tab, 0 or 1")
        examples.append(Example(sentence.strip(), "\nSentiment:", int(label), f"{path}: line {number}"))
    return _not_empty(path, examples)


def read_boolq(path: Path) -> list[Example]:
    """``train.jsonl`` or ``dev.jsonl`` of BoolQ, of its authors (``answer``) or of SuperGLUE (``label``).

    Questions are in lower case and without a question mark, which is added.
    """
    examples = []
    for number, line in _lines(path):
        place = f"{path}: line {number}"
        row = _object(line, place)
        question, passage = _text(row, "question", place), _text(row, "passage", place)
        answer = row.get("answer", row.get("label"))
        if not isinstance(answer, bool):
            raise ValueError(f"{place}: answer is {answer!r}, expected true or false (the test split has none)")
        question = question.strip().removesuffix("?")
        examples.append(Example(passage.strip(), f"\nQuestion: {question}?\nAnswer:", int(answer), place))
    return _not_empty(path, examples)


def read_quality(path: Path) -> list[Example]:
    """``QuALITY.v1.0.1.htmlstripped.train`` or ``.dev``: a line for an article and the questions of one writer.

    Each article has two lines. ``gold_label`` counts the four options from 1.
    """
    examples = []
    for number, line in _lines(path):
        place = f"{path}: line {number}"
        row = _object(line, place)
        article, questions = _text(row, "article", place), row.get("questions")
        if article.lstrip().startswith("<"):
            raise ValueError(f"{place}: the article is HTML: take the file whose name has htmlstripped in it")
        if not isinstance(questions, list) or not questions:
            raise ValueError(f"{place}: questions is {str(questions)[:80]}, expected a list of questions")
        for index, item in enumerate(questions):
            here = f"{place}, question {index + 1}"
            if not isinstance(item, dict):
                raise ValueError(f"{here}: is {str(item)[:80]}, expected an object")
            options, gold = item.get("options"), item.get("gold_label")
            if not (isinstance(options, list) and len(options) == 4 and all(isinstance(text, str) for text in options)):
                raise ValueError(f"{here}: options is {str(options)[:80]}, expected four texts")
            if type(gold) is not int or not 1 <= gold <= 4:
                raise ValueError(f"{here}: gold_label is {gold!r}, expected 1, 2, 3 or 4 (the test split has none)")
            listed = "".join(f"\n{letter}. {text.strip()}" for letter, text in zip("ABCD", options, strict=True))
            question = f"\n\nQuestion: {_text(item, 'question', here).strip()}{listed}\nAnswer:"
            examples.append(Example(article.strip(), question, gold - 1, here, hard=item.get("difficult") == 1))
    return _not_empty(path, examples)


TASKS = {
    "sst2": AnswerTask(read_sst2, (" negative", " positive"), 128),
    "boolq": AnswerTask(read_boolq, (" no", " yes"), 512),
    "quality": AnswerTask(read_quality, (" A", " B", " C", " D"), 4096),
}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines by their number from 1, without empty ones at the end. Only a newline ends a line: texts hold others."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    yield from enumerate(text.rstrip("\r\n").split("\n") if text.strip() else [], start=1)


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{place}: a JSON {type(row).__name__}, expected an object")
    return row


def _text(row: dict[str, Any], name: str, place: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{place}: {name} is {value!r}, expected a text")
    return value


def _not_empty(path: Path, examples: list[Example]) -> list[Example]:
    if not examples:
        raise ValueError(f"{path}: holds no example")
    return examples
