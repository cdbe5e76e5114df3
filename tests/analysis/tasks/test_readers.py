"""The readers of published data on small files in their formats, with the quirks that the real ones have.

Covers analysis/tasks/eraser.py, analysis/tasks/files.py, analysis/tasks/hatexplain.py, analysis/tasks/squad.py,
analysis/tasks/sva.py.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from saf_titan.analysis.tasks.eraser import read_eraser
from saf_titan.analysis.tasks.example import Example
from saf_titan.analysis.tasks.hatexplain import read_hatexplain
from saf_titan.analysis.tasks.readers import READERS
from saf_titan.analysis.tasks.squad import UNANSWERABLE, read_questions, read_squad, tokens_of_span
from saf_titan.analysis.tasks.sva import read_sva


def relevant_words(example: Example) -> list[str]:
    return [word for word, mark in zip(example.words, example.relevant, strict=True) if mark]


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


# HateXplain


def post(labels: list[str], rationales: list[list[int]], words: str = "they are <user> awful 😀") -> dict[str, Any]:
    annotators = [{"label": label, "annotator_id": n, "target": ["None"]} for n, label in enumerate(labels)]
    return {"post_id": "p", "annotators": annotators, "rationales": rationales, "post_tokens": words.split()}


HATE = ["offensive", "hatespeech", "offensive"]


def test_hatexplain_majorities(tmp_path: Path) -> None:
    data = {
        "1_gab": post(HATE, [[0, 0, 0, 1, 1], [1, 0, 0, 1, 0], [0, 0, 1, 1, 0]]),
        # the annotator who calls it normal marks nothing and has no list
        "2_gab": post(["normal", "offensive", "offensive"], [[1, 0, 0, 1, 0], [0, 0, 0, 1, 0]]),
        "3_twitter": post(["normal", "normal", "normal"], []),
        # all three differ: the authors leave it out
        "4_gab": post(["normal", "offensive", "hatespeech"], [[0, 0, 0, 1, 0], [0, 0, 0, 1, 0]]),
    }
    first, second, third = read_hatexplain(write(tmp_path / "dataset.json", data))
    assert (first.label, relevant_words(first)) == ("offensive", ["awful"])
    assert first.words == ("they", "are", "<user>", "awful", "😀", "[label]")
    # one of two is half
    assert (second.label, relevant_words(second)) == ("offensive", ["they", "awful"])
    assert (third.label, third.has_relevance) == ("normal", False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected an object that maps post ids to posts"),
        ({"7": post(HATE, [[1, 0]])}, "post 7: a rationale must have one number for each of the 5 tokens"),
        ({"7": {"annotators": []}}, "post 7: post_tokens must be there and be a list, got 'None'"),
    ],
)
def test_hatexplain_errors(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_hatexplain(write(tmp_path / "dataset.json", data)))


# SQuAD

CONTEXT = "The Café de Flore opened in 1887. It's in Paris, France."


def squad(*questions: dict[str, Any], version: str = "v2.0") -> dict[str, Any]:
    return {"version": version, "data": [{"title": "x", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}]}


def answer(text: str) -> dict[str, Any]:
    return {"text": text, "answer_start": CONTEXT.index(text)}


def test_squad_version_1_has_no_mark_of_impossible_and_repeats_answers(tmp_path: Path) -> None:
    question = {
        "id": "a",
        "question": "Where is it?",
        "answers": [answer("Paris"), answer("Paris"), answer("Paris, France")],
    }
    path = write(tmp_path / "dev.json", squad(question, version="1.1"))
    (read,) = read_questions(path)
    assert read.answers == ((42, "Paris"), (42, "Paris, France"))
    (example,) = read_squad(path)
    assert (example.label, relevant_words(example)) == ("paris", ["paris", ",", "france"])
    assert example.words[-6:] == ("[question]", "where", "is", "it", "?", "[answer]")


def test_squad_version_2_without_an_answer(tmp_path: Path) -> None:
    question = {
        "id": "b",
        "question": "Who founded it?",
        "is_impossible": True,
        "answers": [],
        "plausible_answers": [answer("Paris")],
    }
    (example,) = read_squad(write(tmp_path / "train.json", squad(question)))
    assert (example.label, example.has_relevance) == (UNANSWERABLE, False)


def test_squad_spans_that_words_do_not_respect(tmp_path: Path) -> None:
    # annotators cut words: the whole word is marked
    question = {"id": "c", "question": "When?", "is_impossible": False, "answers": [answer("188")]}
    (example,) = read_squad(write(tmp_path / "train.json", squad(question)))
    assert (example.label, relevant_words(example)) == ("1887", ["1887"])
    offsets = [(0, 0), (0, 3), (4, 6), (6, 8), (0, 0)]
    assert tokens_of_span(offsets, 5, 7) == [False, False, True, True, False]
    assert tokens_of_span(offsets, 3, 4) == [False] * 5


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"id": "d", "question": "?", "answers": []}, "question d: it has no answer and is not marked as impossible"),
        (
            {"id": "d", "question": "?", "answers": [{"text": "Paris", "answer_start": 3}]},
            "question d: the context does not have 'Paris' at character 3",
        ),
        ({"id": "d", "answers": [answer("Paris")]}, "question must be there and be a str"),
    ],
)
def test_squad_errors(tmp_path: Path, question: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_questions(write(tmp_path / "train.json", squad(question))))


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x\.json: it is no JSON"):
        list(read_squad(tmp_path / "x.json"))


# agreement of Linzen et al.

HEADER = ["sentence", "orig_sentence", "pos_sentence", "subj", "verb", "subj_pos", "has_rel", "has_nsubj", "verb_pos"]
HEADER += ["subj_index", "verb_index", "n_intervening", "last_intervening", "n_diff_intervening", "distance"]


def sva_row(sentence: str, subject: int, verb: int, verb_pos: str) -> str:
    values = dict.fromkeys(HEADER, "_")
    values |= {"sentence": sentence, "subj_index": str(subject), "verb_index": str(verb), "verb_pos": verb_pos}
    return "\t".join(values[name] for name in HEADER)


SVA = [
    "\t".join(HEADER),
    sva_row('the keys to the " old cabinet are here .', 2, 8, "VBP"),
    # the subject follows its verb
    sva_row("here is the key .", 4, 2, "VBZ"),
    sva_row("the NN that she likes is NN .", 2, 6, "VBZ"),
]


@pytest.mark.parametrize("is_gzipped", [False, True])
def test_sva(tmp_path: Path, is_gzipped: bool) -> None:
    path = tmp_path / ("agr.tsv.gz" if is_gzipped else "agr.tsv")
    text = ("\n".join(SVA) + "\n").encode()
    path.write_bytes(gzip.compress(text) if is_gzipped else text)
    first, second = read_sva(path)
    assert first.words == ("the", "keys", "to", "the", '"', "old", "cabinet", "[verb]")
    assert (first.label, relevant_words(first)) == ("plural", ["keys"])
    assert (second.label, relevant_words(second), second.words[-2:]) == ("singular", ["NN"], ("likes", "[verb]"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["sentence\tverb_index"], "the header has no subj_index, verb_pos"),
        ([SVA[0], sva_row("a b", 1, 3, "VBZ")], "line 2: verb_index is '3', expected a number from 1 to the 2 words"),
        ([SVA[0], sva_row("a b", 1, 2, "VBD")], "line 2: verb_pos is 'VBD', expected VBZ or VBP"),
        ([SVA[0], "a b"], "line 2: verb_index is None"),
    ],
)
def test_sva_errors(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "agr.tsv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=message):
        list(read_sva(path))


# ERASER


def span(document: str, start: int, stop: int) -> dict[str, Any]:
    return {"docid": document, "start_token": start, "end_token": stop, "text": "", "start_sentence": -1}


def eraser(folder: Path, *annotations: dict[str, Any], documents: dict[str, str]) -> Path:
    (folder / "docs").mkdir()
    for name, text in documents.items():
        (folder / "docs" / name).write_text(text)
    path = folder / "train.jsonl"
    path.write_text("\n".join(json.dumps(annotation) for annotation in annotations) + "\n\n")
    return path


def test_eraser(tmp_path: Path) -> None:
    groups = [[span("neg.txt", 1, 3)], [span("neg.txt", 4, 5), span("other.txt", 0, 1)]]
    path = eraser(
        tmp_path,
        {"annotation_id": "a", "classification": "NEG", "query": "is it good ?", "evidences": groups},
        # no evidence: the document is that of the annotation's name, or of docids
        {"annotation_id": "neg.txt", "classification": "POS", "query": None, "evidences": []},
        {"annotation_id": "c", "classification": "POS", "evidences": [], "docids": ["other.txt"]},
        documents={"neg.txt": "a dull film\nand long .", "other.txt": "bad plot"},
    )
    first, second, third = read_eraser(path)
    assert " ".join(first.words) == "a dull film and long . bad plot [query] is it good ?"
    assert (first.label, relevant_words(first)) == ("NEG", ["dull", "film", "long", "bad"])
    assert (second.words[-1], second.has_relevance) == ("[query]", False)
    assert third.words == ("bad", "plot", "[query]")


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        (span("gone.txt", 0, 1), r"line 1: the document gone\.txt is not in"),
        (span("neg.txt", 2, 9), r"line 1: words 2 to 9 are not in neg\.txt, which has 3 words"),
        ({"docid": "neg.txt", "start_token": 0}, "line 1: end_token must be there and be a int"),
    ],
)
def test_eraser_errors(tmp_path: Path, evidence: dict[str, Any], message: str) -> None:
    annotation = {"annotation_id": "a", "classification": "NEG", "evidences": [[evidence]]}
    path = eraser(tmp_path, annotation, documents={"neg.txt": "a dull film"})
    with pytest.raises(ValueError, match=message):
        list(read_eraser(path))
    path.write_text("{\n")
    with pytest.raises(ValueError, match="line 1: it is no JSON"):
        list(read_eraser(path))


def test_every_task_has_a_reader() -> None:
    assert set(READERS) == {"sva", "squad", "hatexplain", "eraser"}
