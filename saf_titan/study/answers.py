"""Reads how many answers were right at the end of runs on synthetic sequences, by length and number of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from saf_titan.report.rows import AccuracyRow
from saf_titan.study.progress import log_of
from saf_titan.study.runs import StudyRun
from saf_titan.study.statistics import Spread, spread

Answers = dict[tuple[int, int], AccuracyRow]
"""(length in tokens, number of pairs) -> the answers on sequences of that kind; 0 pairs for class tokens."""


def final_answers(run: StudyRun) -> Answers:
    """Return the answers at the end of a run, from the run itself or from its evaluation; empty for a run on text."""
    for folder in (run.folder, run.evaluation):
        log = log_of(folder)
        if log is not None and log.finish is not None:
            rows = [row for row in log.accuracies if row.phase == "final" and row.step == log.finish.step]
            if rows:
                return {(row.length, row.pairs): row for row in rows}
    return {}


def mean_accuracy(answers: Answers) -> float:
    """Return the share of right answers in %, averaged over all kinds of sequences; `answers` must not be empty."""
    return 100 * fmean(row.accuracy for row in answers.values())


def kinds_of(runs: Iterable[Answers]) -> list[tuple[int, int]]:
    """Return all (length, pairs) of some runs, ascending."""
    return sorted({kind for answers in runs for kind in answers})


def kind_name(kind: tuple[int, int]) -> str:
    """Return the heading of a kind in a table: "512 x 8" for 512 tokens and 8 pairs, "512" for class tokens."""
    length, pairs = kind
    return f"{length} x {pairs}" if pairs else str(length)


def accuracy_of(runs: Sequence[Answers], kind: tuple[int, int]) -> Spread:
    """Return the share of all queries of one kind of sequences that were answered rightly, in %, for each seed."""
    return spread([100 * answers[kind].accuracy for answers in runs if kind in answers])
