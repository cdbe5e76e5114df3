"""Whatever stands in the log, the report is written."""

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saf_titan.report.write import write_report
from tests.report.runs import freeze_row, relevance_row, session_row, train_row, validation_row, write_run

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 200) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=3,
)
sound = st.sampled_from(
    [
        session_row("start", 0),
        session_row("resume", 20),
        *(train_row(step) for step in (1, 5, 20, 25, 30)),
        validation_row(20, "before_freeze"),
        validation_row(20, "after_freeze"),
        freeze_row(20, 4),
        relevance_row(20, "before_freeze"),
        relevance_row(30, "final"),
    ]
)
fields = [
    "kind",
    "step",
    "loss",
    "tokens",
    "step_seconds",
    "phase",
    "folder",
    "seconds",
    "world_size",
    "heads",
    "mass",
    "dtap",
]
spoilt = st.builds(lambda row, field, value: {**row, field: value}, sound, st.sampled_from(fields), anything)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(sound | spoilt, max_size=12))
def test_any_log(rows: list[Any], tmp_path: Path) -> None:
    folder = write_run(tmp_path, [], "--saf.enable=true")
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert write_report(folder).stat().st_size > 1000
