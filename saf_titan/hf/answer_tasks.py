"""Read the official files of SST-2, BoolQ and QuALITY as texts, each with an answer of one token.

The files are read as their authors publish them. A line in another form is an error that names its file and number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Example:
    """One question. The text is ``passage + question``; the answer is one of the answers of its task."""

    passage: str
    """The part of the text that is shortened, from its end, if the text is too long for the model."""
    question: str
    """Ends with a colon, after which the answer is predicted."""
    answer: int
    """Index among the answers of the task."""
    place: str
    """File and line, for messages."""
    hard: bool = False
    """QuALITY only: whether readers with little time could not answer the question."""


@dataclass(frozen=True)
class AnswerTask:
    """A task of the published fine-tuning."""

    read: Callable[[Path], list[Example]]
    answers: tuple[str, ...]
    """The answers by their index, each with the space before it."""
    length: int
    """The longest text of the published runs, in tokens."""


def read_sst2(path: Path) -> list[Example]:
    """Read ``train.tsv`` or ``dev.tsv`` of SST-2 in GLUE.

    A header is followed by lines of a sentence, a tab, and 0 (negative) or 1 (positive). Quotes are part of a sentence.
    The sentences of train.tsv end with a space, which is removed. Raises ValueError for a line in another form.
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
    """Read ``train.jsonl`` or ``dev.jsonl`` of BoolQ, by its authors (``answer``) or in SuperGLUE (``label``).

    Questions are in lower case and have no question mark, so one is added. Raises ValueError for a line in another
    form.
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
    """Read ``QuALITY.v1.0.1.htmlstripped.train`` or ``.dev``.

    A line has an article and the questions of one writer; each article has two lines. ``gold_label`` is the number of
    the right option, from 1 to 4. Raises ValueError for a line in another form.
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
    """Yield each line with its number, from 1, without empty lines at the end.

    Only a line feed ends a line, because texts contain other separators.
    """
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
