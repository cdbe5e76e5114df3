"""Writes the page of a study: its table, and the comparison of its arms."""

from __future__ import annotations

from saf_titan.report import markup
from saf_titan.report.compare import comparison
from saf_titan.report.format import count
from saf_titan.report.group import Group
from saf_titan.study.answers import kind_name, kinds_of
from saf_titan.study.cells import answer_row, cell, title
from saf_titan.study.plan import StudyPlan
from saf_titan.study.results import ArmResult
from saf_titan.study.schema import COLUMNS
from saf_titan.study.statistics import CONFIDENCE


def page_text(plan: StudyPlan, results: list[ArmResult]) -> str:
    """Return the page, as HTML, of the arms that have a finished run; the baseline comes first."""
    study = plan.study
    baseline = study.baseline_name
    shown = [result for result in results if result.runs]
    groups = [
        Group(
            name=result.arm.name,
            logs=tuple(run.log for run in result.runs),
            before=tuple(run.whole for run in result.runs),
        )
        for result in sorted(shown, key=lambda result: result.arm.name != baseline)
    ]
    missing = [result.arm.name for result in results if not result.runs]
    columns = [name for name in COLUMNS if any(result.column(name).values for result in shown)]
    rows = [[r.arm.name, str(len(r.runs)), *(cell(name, r.column(name)) for name in columns)] for r in shown]
    lead = [
        markup.facts(
            [
                ("base configuration", study.config),
                ("seeds", ", ".join(map(str, plan.seeds))),
                ("compared with", baseline),
                *([("published numbers", study.published)] if study.published else []),
            ]
        ),
        markup.table(["arm", "seeds", *map(title, columns)], rows, text_columns=("arm",)),
        markup.paragraph(
            f"Mean and standard deviation over seeds. Changes are paired by seed with {baseline}; in brackets the "
            f"{CONFIDENCE:.0%} interval of the mean by Student's t. "
            + " ".join(f"{title(name)}: {COLUMNS[name]}." for name in columns),
            "faint",
        ),
    ]
    if kinds := kinds_of(run.answers for result in shown for run in result.runs):
        answer_rows = [answer_row(result, kinds) for result in shown]
        lead.append(
            markup.table(
                ["right answers in %", *map(kind_name, kinds)], answer_rows, text_columns=("right answers in %",)
            )
        )
        text = "Share of all queries that are answered rightly, by length and number of pairs of the sequences."
        lead.append(markup.paragraph(text, "faint"))
    if missing:
        text = f"{count(len(missing), 'arm')} without a finished run: {', '.join(missing)}."
        lead.append(markup.paragraph(text, "note"))
    return comparison(study.title or study.file.stem, groups, lead=lead)
