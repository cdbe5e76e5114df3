"""Subject-verb agreement, generated: does the verb of a sentence agree with its subject or with a noun in between?

A sentence is cut before its verb, as in Linzen et al. (2016): "yesterday the old keys near the red cabinet [verb]". Its
subject may have adjectives, up to two phrases with nouns of their own number ("attractors" where that number is the
other one), a relative clause, and a phrase in front that holds another noun. The relevant word is the head of the
subject; the label is "is" or "are".
"""

from __future__ import annotations

import numpy as np

from saf_titan.analysis.tasks.example import Example

NOUNS = (
    "key",
    "cabinet",
    "door",
    "author",
    "friend",
    "teacher",
    "doctor",
    "farmer",
    "dog",
    "cat",
    "bird",
    "horse",
    "tree",
    "river",
    "mountain",
    "town",
    "picture",
    "letter",
    "table",
    "window",
    "garden",
    "boat",
    "train",
    "road",
    "bridge",
    "tower",
    "clock",
    "lamp",
    "painter",
    "singer",
    "guard",
    "neighbor",
    "king",
    "soldier",
    "pilot",
    "actor",
    "student",
    "lawyer",
    "baker",
    "hunter",
)
"""Singular nouns whose plural takes an s."""
ADJECTIVES = ("old", "red", "small", "tall", "quiet", "bright", "strange", "heavy", "green", "famous")
PREPOSITIONS = ("near", "behind", "beside", "above", "below", "with", "from")
VERBS = ("see", "like", "follow", "admire", "help")
"""Verbs of relative clauses; their singular takes an s."""
OPENERS = ("yesterday", "today", "often", "clearly", "perhaps")
LABELS = ("is", "are")
QUERY = "[verb]"
"""The word at the end of each example, where the verb is predicted."""


def agreement(num_examples: int, seed: int, *, attractors: float = 0.5) -> list[Example]:
    """Generate examples, the same for the same arguments on every machine.

    Args:
        attractors: probability that a noun other than the subject has the other number, in [0, 1].
    """
    if num_examples < 1 or not 0 <= attractors <= 1:
        raise ValueError(
            f"agreement needs at least one example and attractors in [0, 1], got {num_examples}, {attractors}"
        )
    rng = np.random.default_rng(seed)
    return [_sentence(rng, attractors) for _ in range(num_examples)]


def _sentence(rng: np.random.Generator, attractors: float) -> Example:
    is_plural = bool(rng.random() < 0.5)
    words: list[str] = []

    def pick(choices: tuple[str, ...]) -> str:
        return choices[int(rng.integers(len(choices)))]

    def noun_phrase(plural: bool) -> int:
        """Append determiner, adjectives and noun; return where the noun is."""
        words.append("the")
        words.extend(pick(ADJECTIVES) for _ in range(int(rng.integers(3))))
        words.append(pick(NOUNS) + "s" * plural)
        return len(words) - 1

    def other_number() -> bool:
        return bool(is_plural ^ (rng.random() < attractors))

    if rng.random() < 0.5:
        words.append(pick(OPENERS))
    if rng.random() < 0.3:
        words.append(pick(PREPOSITIONS))
        noun_phrase(other_number())
    subject = noun_phrase(is_plural)
    for _ in range(int(rng.integers(3))):
        words.append(pick(PREPOSITIONS))
        noun_phrase(other_number())
    if rng.random() < 0.3:
        words.append("that")
        plural = other_number()
        noun_phrase(plural)
        words.append(pick(VERBS) + "s" * (not plural))
    words.append(QUERY)
    relevant = tuple(index == subject for index in range(len(words)))
    return Example(words=tuple(words), relevant=relevant, label=LABELS[is_plural])
