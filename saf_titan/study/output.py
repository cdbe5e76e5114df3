"""Writes the results of a study as files: an aligned table, csv, json, and the page."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

from saf_titan import __version__
from saf_titan.analysis.tables import text_table
from saf_titan.fields.json_values import without_nan
from saf_titan.report.write import write_whole
from saf_titan.study.answers import kind_name, kinds_of
from saf_titan.study.cells import answer_row, cell, title
from saf_titan.study.folder import RESULTS_FILE
from saf_titan.study.plan import StudyPlan
from saf_titan.study.results import ArmResult, read_results
from saf_titan.study.schema import COLUMNS
from saf_titan.study.statistics import CONFIDENCE, percent


def write_results(plan: StudyPlan) -> tuple[str, list[Path]]:
    """Write the results of the finished runs into the folder of the study; return the table as text, and the files.

    The page is only written if a run has finished.
    """
    results = read_results(plan)
    table = table_text(plan, results)
    plan.out.mkdir(parents=True, exist_ok=True)
    files = {"table.txt": table + "\n", "results.csv": csv_text(results), RESULTS_FILE: json_text(plan, results)}
    if any(result.runs for result in results):
        # imported only here, because a plotting library is slow to import
        from saf_titan.study.page import page_text

        files["report.html"] = page_text(plan, results)
    for name, text in files.items():
        write_whole(plan.out / name, text)
    return table, [plan.out / name for name in files]


def table_text(plan: StudyPlan, results: list[ArmResult]) -> str:
    """Return the table of the study's `columns`: one line for each arm, with mean and deviation over seeds."""
    columns = plan.study.columns
    rows = [table_row(result, columns) for result in results]
    baseline = plan.study.baseline_name
    notes = [
        f"mean +- standard deviation over the seeds; changes are against {baseline}, paired by seed, "
        f"with the {CONFIDENCE:.0%} interval of the mean by Student's t in brackets",
        *(f"{title(name)}: {COLUMNS[name]}" for name in columns),
    ]
    if plan.study.published:
        notes.append(f"published: {plan.study.published}")
    lines = text_table(["arm", "seeds", *map(title, columns)], rows, has_rule=True)
    if kinds := kinds_of(run.answers for result in results for run in result.runs):
        header = ["right answers in %", *map(kind_name, kinds)]
        lines += ["", *text_table(header, [answer_row(result, kinds) for result in results], has_rule=True)]
        notes.append("right answers: share of all queries, by length and number of pairs of the sequences")
    return "\n".join([*lines, "", *notes])


def table_row(result: ArmResult, columns: tuple[str, ...]) -> list[str]:
    """Return the cells of an arm: its name, the number of its seeds, and the columns."""
    return [result.arm.name, str(len(result.runs)), *(cell(name, result.column(name)) for name in columns)]


def csv_text(results: list[ArmResult]) -> str:
    """Return a csv file with one line for each run and all columns; a cell is empty if nothing was measured."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["arm", "seed", *COLUMNS, "static_heads"])
    for result in results:
        for run in result.runs:
            values = _all_values(result, run.seed, run.values)
            numbers = ["" if math.isnan(values[name]) else repr(values[name]) for name in COLUMNS]
            writer.writerow([result.arm.name, run.seed, *numbers, " ".join(run.heads)])
    return buffer.getvalue()


def json_text(plan: StudyPlan, results: list[ArmResult]) -> str:
    """Return a JSON file with every run, and for each arm mean, deviation and interval of every column.

    A number that was not measured is null.
    """
    arms = []
    for result in results:
        runs = [
            {
                "seed": run.seed,
                **without_nan(_all_values(result, run.seed, run.values)),
                "static_heads": list(run.heads),
                "answers": [without_nan(dataclasses.asdict(row)) for row in run.answers.values()],
            }
            for run in result.runs
        ]
        summary = {}
        for name in COLUMNS:
            values = result.column(name)
            parts = {"mean": values.mean, "deviation": values.deviation, "half_width": values.half_width}
            summary[name] = without_nan(parts) | {"n": len(values.values)}
        arms.append({"name": result.arm.name, "runs": runs, "summary": summary})
    study = plan.study
    head: dict[str, Any] = {
        "study": study.file.stem,
        "title": study.title,
        "config": study.config,
        "seeds": list(plan.seeds),
        "baseline": study.baseline_name,
        "confidence": CONFIDENCE,
        "version": __version__,
        "columns": COLUMNS,
    }
    return json.dumps({**head, "arms": arms}, indent=1, allow_nan=False) + "\n"


def _all_values(result: ArmResult, seed: int, values: dict[str, float]) -> dict[str, float]:
    change = result.changes.get(seed, math.nan)
    return {**values, "change": change, "perplexity": percent(change), "published": result.arm.published}
