"""Attention on relevant tokens, as a run on generated sequences leaves it: curves, DTAP maps, tables.

Covers report/relevance.py.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from saf_titan.analysis.relevance import attention_and_model_confidence, confidence_curve, dtap
from saf_titan.report import relevance
from saf_titan.report.relevance import relevance_sections
from saf_titan.report.row_lines import read_row
from saf_titan.report.rows import METRICS_FILE, RelevanceRow
from saf_titan.report.run_log import RunLog, read_run
from saf_titan.report.write import write_report
from tests.report.runs import plain_rows, relevance_row, session_row, write_frozen_run, write_run
from tests.report.test_write import pictures, text_of

PHASES = ((1, "scheduled"), (60, "before_freeze"), (60, "after_freeze"), (120, "final"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_frozen_run(tmp_path_factory.mktemp("runs") / "run")
    with (folder / METRICS_FILE).open("a") as log:
        for step, phase in PHASES:
            log.write(json.dumps(relevance_row(step, phase)) + "\n")
    return folder


def log_of(*rows: dict[str, object]) -> RunLog:
    found = [read_row(json.dumps(row)) for row in rows]
    return RunLog(folder=Path("run"), relevances=[row for row in found if isinstance(row, RelevanceRow)])


def test_curves_maps_and_tables_over_the_course_of_a_run(run: Path, tmp_path: Path) -> None:
    page = write_report(run, out=tmp_path / "page.html")
    text = text_of(page)
    assert "Attention on relevant tokens" in text
    # layers 0 and 1: the mass of the upper one is 0.96 at the end
    assert "120 final 1.000 1.000" in text
    assert "60 before freeze 0.000 0.000" in text
    assert "head mass at the start mass at the end AC at the start AC at the end L0H0 0.000 0.860 0.000 1.000" in text
    assert "threshold start (step 1) before the freeze (step 60) after the freeze (step 60) end (step 120)" in text
    assert "0.4 0.000 1.000 1.000 1.000" in text
    assert "DTAP maps of layer" in text
    assert text.count("AC 1.00, ACMC 1.00") == 1
    without = len(pictures(write_report(write_frozen_run(tmp_path / "without"), out=tmp_path / "other.html")))
    assert len(pictures(page)) == without + 3 + len(PHASES)


def test_a_run_without_relevant_tokens_shows_nothing(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", plain_rows()))
    assert "relevant tokens" not in text_of(page)


def test_confidence_from_the_counts_is_that_of_the_examples() -> None:
    generator = np.random.default_rng(0)
    mass, probability = generator.random((2, 500))
    cells = np.rint(dtap(mass, probability) * 500)
    row = RelevanceRow(step=1, phase="final", length=8, mass=((0.5,),), confidence=((0.5,),), dtap=(tuple(cells.flat),))
    curve = confidence_curve(mass, np.arange(10) / 10)
    np.testing.assert_allclose(relevance._curve(row, 0), curve, atol=1e-12)
    assert relevance._layer_confidence(row) == pytest.approx([curve[5]])
    assert relevance._both(row, 0) == pytest.approx(attention_and_model_confidence(mass, probability))


def test_the_good_corner_of_a_map_is_the_upper_right() -> None:
    row = RelevanceRow(**{k: v for k, v in relevance_row(1, "final", sharpness=0.99).items() if k != "kind"})
    svg = ElementTree.fromstring(relevance.dtap_figure(row, 1))
    (image,) = (element for element in svg.iter() if element.tag.endswith("image"))
    data = image.attrib["{http://www.w3.org/1999/xlink}href"].partition("base64,")[2]
    pixels = imread(io.BytesIO(base64.b64decode(data)))[..., :3].sum(-1)
    # the picture may be written upside down and turned by its element
    upwards = pixels[::-1] if "scale(1 -1)" in image.attrib.get("transform", "") else pixels
    height, width = upwards.shape
    assert upwards[0, width - 1] == upwards.max()
    assert upwards[height - 1, 0] < upwards.max()


@pytest.mark.parametrize(
    "change",
    [
        {"dtap": [[1, 2, 3]] * 2},
        {"dtap": [[0] * 100] * 2},
        {"mass": [[0.1]]},
        {"mass": []},
        {"dtap": [[None] * 100] * 2},
    ],
    ids=["no square", "no question", "other shapes", "no layer", "no numbers"],
)
def test_rows_that_do_not_fit_together_are_left_out(change: dict[str, object]) -> None:
    good = relevance_row(60, "scheduled")
    assert list(relevance_sections(log_of(good | change))) == []
    assert list(relevance_sections(log_of(good, good | change | {"step": 70}))) == list(
        relevance_sections(log_of(good))
    )


def test_heads_without_output_and_layers_without_heads() -> None:
    row = relevance_row(60, "final", layers=3)
    row["mass"][0] = row["confidence"][0] = [None] * 4
    row["dtap"][0] = [0] * 100
    row["mass"][1][2] = row["confidence"][1][2] = None
    text = "".join(relevance_sections(log_of(row)))
    assert '<td class="text">L0H1</td><td></td><td></td><td></td><td></td>' in text
    assert ">L1H2</td><td></td>" in text
    assert "DTAP maps of layer" in text


def test_a_resumed_run_forgets_what_was_beyond_the_checkpoint(tmp_path: Path) -> None:
    rows = [session_row("start", 0), relevance_row(40, "scheduled"), relevance_row(60, "scheduled")]
    again = [session_row("resume", 40), relevance_row(60, "final", sharpness=0.9)]
    log = read_run(write_run(tmp_path / "run", [*rows, *again]))
    assert [(row.step, row.phase) for row in log.relevances] == [(40, "scheduled"), (60, "final")]


def test_several_sets_have_titles() -> None:
    rows = [relevance_row(60, "final") | {"length": length, "pairs": 3} for length in (16, 12)]
    text = "".join(relevance_sections(log_of(*rows)))
    assert text.index("12 tokens, 3 pairs") < text.index("16 tokens, 3 pairs")
