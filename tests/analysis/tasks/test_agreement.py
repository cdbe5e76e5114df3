"""The generated agreement data: grammatical, seeded, with attractors, and not solvable by the nearest noun.

Covers analysis/tasks/example.py.
"""

from __future__ import annotations

import pytest

from saf_titan.analysis.tasks.agreement import LABELS, NOUNS, QUERY, agreement
from saf_titan.analysis.tasks.example import Example

PLURALS = {noun + "s" for noun in NOUNS}


def nouns_of(example: Example) -> list[str]:
    return [word for word in example.words if word in PLURALS or word in NOUNS]


def test_the_label_is_the_number_of_the_relevant_noun() -> None:
    for example in agreement(300, seed=0):
        (subject,) = [word for word, mark in zip(example.words, example.relevant, strict=True) if mark]
        assert subject in NOUNS or subject in PLURALS
        assert example.label == LABELS[subject in PLURALS]
        assert example.words[-1] == QUERY
        # the subject is no noun of a phrase with a preposition: those of the others are behind it, or in front
        assert example.words.count("that") <= 1


def test_attractors_mislead() -> None:
    def accuracy_of_last_noun(attractors: float) -> float:
        examples = agreement(600, seed=1, attractors=attractors)
        return sum(example.label == LABELS[nouns_of(example)[-1] in PLURALS] for example in examples) / len(examples)

    assert accuracy_of_last_noun(0.0) == 1
    assert 0.5 < accuracy_of_last_noun(0.5) < 0.75
    labels = [example.label for example in agreement(600, seed=1)]
    assert 0.45 < labels.count("are") / len(labels) < 0.55
    assert {len(nouns_of(example)) for example in agreement(600, seed=1)} == {1, 2, 3, 4, 5}


def test_equal_arguments_give_equal_examples() -> None:
    assert agreement(20, seed=3) == agreement(20, seed=3)
    assert agreement(20, seed=3) == agreement(40, seed=3)[:20]
    assert agreement(20, seed=3) != agreement(20, seed=4)
    # a change of the generator is a change of every result that was made with it
    assert " ".join(agreement(1, seed=0)[0].words) == FIRST


FIRST = "today near the famous garden the famous singer above the king that the old guard admires [verb]"


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attractors in \[0, 1\], got 1, 2"):
        agreement(1, 0, attractors=2)
    with pytest.raises(ValueError, match="at least one example"):
        agreement(0, 0)
    with pytest.raises(ValueError, match="2 words and 1 marks"):
        Example(words=("a", "b"), relevant=(True,), label="c")
    assert not Example(words=("a",), relevant=(False,), label="c").has_relevance
