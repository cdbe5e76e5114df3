"""The official files of SST-2, BoolQ and QuALITY in their real forms, with their quirks, and lines that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from saf_titan.hf.answer_tasks import TASKS, Example

# quotes and separators are text, sentences end with a space, and train.tsv repeats phrases
SST2 = (
    "sentence\tlabel\n"
    'a " lovely , lopsided film \t1\n'
    "d\u00e9j\u00e0 vu , at best \t0\n"
    "it 's \u0085 not -lrb- quite -rrb- good\t0\n"
    'a " lovely , lopsided film \t1\n'
)
BOOLQ = [
    {
        "question": "is the sky on mars blue",
        "title": "Mars",
        "answer": False,
        "passage": "Mars \u2013 its sky is red.\n",
    },
    {"question": "do heads freeze", "title": "Head", "answer": True, "passage": "Some heads\u2028freeze early."},
]
ARTICLE = "THE LAST HEAD\n\n\n  By A. Writer\n\nIt looked at nothing, and was content."


def quality_row(**changes: Any) -> dict[str, Any]:
    question = {
        "question": "What did the head look at? ",
        "question_unique_id": "99901_AB12CDEF_1",
        "options": ["Everything", "The first token ", "Nothing", "Itself"],
        "writer_label": 3,
        "gold_label": 3,
        "validation": [{"untimed_annotator_id": "0001", "untimed_answer": 3, "untimed_eval1_answerability": 1}],
        "speed_validation": [{"speed_annotator_id": "0002", "speed_answer": 1}],
        "difficult": 1,
    }
    other = question | {"question": "Was it content?", "options": ["Yes", "No", "At times", "Never"], "difficult": 0}
    row = {
        "article_id": "99901",
        "set_unique_id": "99901_AB12CDEF",
        "batch_num": "21",
        "writer_id": "1001",
        "source": "Gutenberg",
        "title": "The Last Head",
        "topic": "Science fiction",
        "url": "",
        "license": "",
        "article": ARTICLE,
        "questions": [question, other | {"gold_label": 1}],
    }
    return row | changes


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_sst2(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    for text in (SST2, SST2.replace("\n", "\r\n"), SST2 + "\n\n", SST2.rstrip("\n")):
        file.write_bytes(text.encode())
        examples = TASKS["sst2"].read(file)
        assert [(each.passage, each.answer) for each in examples] == [
            ('a " lovely , lopsided film', 1),
            ("d\u00e9j\u00e0 vu , at best", 0),
            ("it 's \u0085 not -lrb- quite -rrb- good", 0),
            ('a " lovely , lopsided film', 1),
        ]
        assert {each.question for each in examples} == {"\nSentiment:"}
        assert [each.place for each in examples] == [f"{file}: line {number}" for number in (2, 3, 4, 5)]
    assert TASKS["sst2"].answers == (" negative", " positive")


@pytest.mark.parametrize("distribution", ["authors", "superglue"])
def test_boolq(distribution: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = BOOLQ
    if distribution == "superglue":
        rows = [
            {"question": row["question"], "passage": row["passage"], "idx": n, "label": row["answer"]}
            for n, row in enumerate(rows)
        ]
    file = write_rows(tmp_path / "train.jsonl", rows)
    assert TASKS["boolq"].read(file) == [
        Example("Mars \u2013 its sky is red.", "\nQuestion: is the sky on mars blue?\nAnswer:", 0, f"{file}: line 1"),
        Example("Some heads\u2028freeze early.", "\nQuestion: do heads freeze?\nAnswer:", 1, f"{file}: line 2"),
    ]
    assert TASKS["boolq"].answers == (" no", " yes")


def test_quality(tmp_path: Path) -> None:
    """Two writers, two lines, one article; labels count from 1."""
    second = quality_row(set_unique_id="99901_ZZ00ZZ00")
    file = write_rows(tmp_path / "QuALITY.v1.0.1.htmlstripped.dev", [quality_row(), second])
    examples = TASKS["quality"].read(file)
    assert len(examples) == 4
    assert {each.passage for each in examples} == {ARTICLE}
    assert examples[0].question == (
        "\n\nQuestion: What did the head look at?\nA. Everything\nB. The first token\nC. Nothing\nD. Itself\nAnswer:"
    )
    assert [each.answer for each in examples] == [2, 0, 2, 0]
    assert [each.hard for each in examples] == [True, False, True, False]
    assert examples[3].place == f"{file}: line 2, question 2"
    assert TASKS["quality"].answers == (" A", " B", " C", " D")


QUESTION = quality_row()["questions"][0]


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("sst2", "", "line 1 is '', expected sentence, a tab, label: this is another file"),
        ("sst2", "index\tsentence\n0\tfine \n", "this is the test split, which has no labels"),
        ("sst2", "sentence\tlabel\n", "holds no example"),
        ("sst2", "sentence\tlabel\ngood \t1\nbad 0\n", "line 3 is 'bad 0', expected a sentence, a tab, 0 or 1"),
        ("sst2", "sentence\tlabel\ngood \t1\n\nbad\t0\n", "line 3 is '', expected"),
        ("sst2", "sentence\tlabel\ngood \t2\n", "line 2 is 'good \\t2'"),
        ("sst2", "sentence\tlabel\ngood\tvery\t1\n", "line 2 is 'good\\tvery\\t1'"),
        ("sst2", "sentence\tlabel\n \t1\n", "line 2 is ' \\t1'"),
        ("boolq", "\n", "holds no example"),
        ("boolq", '{"question": "a"\n', "line 1: not JSON"),
        ("boolq", json.dumps(BOOLQ[0]) + "\n[1]\n", "line 2: a JSON list, expected an object"),
        ("boolq", json.dumps({"question": "a", "passage": "b"}), "line 1: answer is None, expected true or false"),
        ("boolq", json.dumps(BOOLQ[0] | {"answer": 1}), "line 1: answer is 1, expected true or false"),
        ("boolq", json.dumps(BOOLQ[0] | {"passage": " "}), "line 1: passage is ' ', expected a text"),
        ("quality", json.dumps(quality_row(article="<html><p>x</p>")), "line 1: the article is HTML"),
        ("quality", json.dumps(quality_row(questions=[])), "line 1: questions is [], expected a list"),
        ("quality", json.dumps(quality_row(questions=["q"])), "line 1, question 1: is q, expected an object"),
        (
            "quality",
            json.dumps(quality_row(questions=[QUESTION, QUESTION | {"gold_label": 0}])),
            "question 2: gold_lab",
        ),
        ("quality", json.dumps(quality_row(questions=[QUESTION | {"gold_label": None}])), "the test split has none"),
        ("quality", json.dumps(quality_row(questions=[QUESTION | {"options": ["a", "b"]}])), "expected four texts"),
        ("quality", json.dumps(quality_row(questions=[QUESTION | {"question": 3}])), "question 1: question is 3"),
    ],
)
def test_a_line_that_does_not_fit_is_named(task: str, text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="^" + str(file)) as error:
        TASKS[task].read(file)
    assert message in str(error.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"sentence\tlabel\ncaf\xe9\t1\n")
    for task in TASKS.values():
        with pytest.raises(ValueError, match=r"data is not UTF-8 text .* at byte 18"):
            task.read(tmp_path / "data")
