"""Right answers at the end of the runs of a study that train on synthetic sequences, by length and number of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from saf_titan.report.rows import AccuracyRow
from saf_titan.study.progress import log_of
from saf_titan.study.runs import StudyRun
from saf_titan.study.statistics import Spread, spread

Answers = dict[tuple[int, int], AccuracyRow]
"""(length, pairs) -> the answers on sequences of that kind; pairs are 0 for class tokens."""


def final_answers(run: StudyRun) -> Answers:
    """The answers at the end of a run, by the run itself or by its evaluation; empty for a run on text."""
    for folder in (run.folder, run.evaluation):
        log = log_of(folder)
        if log is not None and log.finish is not None:
            rows = [row for row in log.accuracies if row.phase == "final" and row.step == log.finish.step]
            if rows:
                return {(row.length, row.pairs): row for row in rows}
    return {}


def mean_accuracy(answers: Answers) -> float:
    """Share of right answers in %, the mean over all kinds of sequences; there must be one kind at least."""
    return 100 * fmean(row.accuracy for row in answers.values())


def kinds_of(runs: Iterable[Answers]) -> list[tuple[int, int]]:
    """All (length, pairs), in order."""
    return sorted({kind for answers in runs for kind in answers})


def kind_name(kind: tuple[int, int]) -> str:
    """How a table names sequences of a length and a number of pairs: "512 x 8"."""
    length, pairs = kind
    return f"{length} x {pairs}" if pairs else str(length)


def accuracy_of(runs: Sequence[Answers], kind: tuple[int, int]) -> Spread:
    """Share of right answers in %, over all queries (micro-average), on sequences of one kind, over the seeds."""
    return spread([100 * answers[kind].accuracy for answers in runs if kind in answers])
