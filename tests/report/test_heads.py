"""The map of heads holds the numbers of the statistics, and the pictures of the patterns, and says what it marks.

Covers report/heads.py, report/colors.py and report/explorer.py.
"""

import base64
import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from saf_titan.report.colors import COLORS, UNKNOWN
from saf_titan.report.event import FreezeEvent, pooled_pattern
from saf_titan.report.explorer import head_explorer
from saf_titan.report.heads import HeadMaps, Metric, maps_of_event, maps_of_freeze, metrics_of, pictures_of
from saf_titan.report.rows import FreezeRow
from tests.report.runs import calibration
from tests.report.test_event import static_head
from tests.saf.plans import plan_of


@pytest.fixture(scope="module")
def event() -> FreezeEvent:
    statistics = calibration()
    plan = plan_of(statistics, step=60, rate=0.5, max_fit_kl=0.2, on_shortfall="warn")
    return FreezeEvent(freeze=FreezeRow(step=60, heads=4, folder=""), plan=plan, calibration=statistics, problem="")


def data_of(html: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    return json.loads(text)


def test_every_head_has_its_numbers_and_marks(event: FreezeEvent) -> None:
    assert event.calibration is not None
    assert event.plan is not None
    maps = maps_of_event(event)
    assert maps is not None
    assert [metric.name for metric in maps.metrics] == ["variance", "kl", "entropy", "sink mass", "recent mass"]
    # in the order in which they were chosen
    by_rank = [head.slot for head in sorted(event.plan.heads, key=lambda head: head.rank)]
    assert by_rank != sorted(by_rank)
    assert [slot for slot, mark in maps.marks.items() if mark == "static"] == by_rank
    html = head_explorer(maps, "heads")
    data = data_of(html)
    for metric, drawn in zip(maps.metrics, data["metrics"], strict=True):
        assert drawn["text"] == [f"{metric.name} {value:.3g}" for value in metric.values_LH.flatten().tolist()]
    # the page shows the first metric before any click
    assert re.findall(r'data-head="(\S+)"', html) == [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    shown = [COLORS.index(color) for color in re.findall(r"background:(#\w+)", html)]
    assert shown == data["metrics"][0]["color"]
    order = event.calibration.variance_LH.flatten().argsort().tolist()
    assert [shown[i] for i in order] == sorted(shown)
    assert {min(shown), max(shown)} == {0, len(COLORS) - 1}


def test_the_panel_of_a_static_head(event: FreezeEvent) -> None:
    assert event.calibration is not None
    assert event.plan is not None
    maps = maps_of_event(event)
    assert maps is not None
    chosen = event.plan.heads[0]
    panel = data_of(head_explorer(maps, "heads"))["heads"][chosen.name]
    assert ["static since", "step 60"] in panel["notes"]
    assert [drawn["name"] for drawn in panel["maps"]] == ["mean attention", "pattern"]
    assert [curve["name"] for curve in panel["curves"]] == [
        "mean attention by key",
        "mean attention by distance",
        "alpha",
        "rho",
    ]
    mean_PP = event.calibration.mean_map_LHPP[chosen.slot].double().numpy()
    pattern_PP = pooled_pattern(chosen, len(mean_PP)).numpy()
    causal = np.tril_indices(len(mean_PP))
    brightest = max(np.quantile(map_PP[causal], 0.98) for map_PP in (mean_PP, pattern_PP))
    for drawn, map_PP in zip(panel["maps"], (mean_PP, pattern_PP), strict=True):
        cells = np.frombuffer(base64.b64decode(drawn["cells"]), np.uint8)
        expected = np.sqrt((map_PP[causal] / brightest).clip(0, 1)) * (len(COLORS) - 1)
        assert np.abs(cells - expected).max() <= 0.5 + 1e-6
    alpha = panel["curves"][2]
    assert alpha["y"][0] == pytest.approx(chosen.pattern.vectors[0][0].item(), rel=1e-3)
    assert alpha["x"][0] == 1


def test_curves_are_means_of_the_vector_over_bins() -> None:
    statistics = calibration(seq_len=200)
    curve = pictures_of(statistics)[1, 2].curves[0]
    keys_T = torch.arange(200, 0, -1, dtype=torch.float64)
    density_T = statistics.column_mass_LHT[1, 2] / keys_T
    # short distances are not averaged, and the bins together hold every position once
    torch.testing.assert_close(curve.y_N[:5], density_T[:5])
    assert len(curve.x_N) <= 96
    assert curve.x_N.diff().min() > 0
    assert curve.x_N[-1] == 200


def test_a_head_without_a_value_is_grey_and_says_so() -> None:
    values_LH = torch.tensor([[1e-3, math.nan], [1.0, 0.1]], dtype=torch.float64)
    html = head_explorer(HeadMaps(metrics=(Metric(name="score", meaning="it", values_LH=values_LH),)), "heads")
    assert re.findall(r"background:(#\w+)", html)[1] == UNKNOWN
    assert 'aria-label="L0H1: score unknown"' in html
    # 1e-3 to 1: a logarithmic scale, on which 0.1 lies at two thirds
    assert data_of(html)["metrics"][0]["color"] == [0, 64, 63, 42]


@pytest.mark.parametrize("value", [0.0, 0.5, math.nan])
def test_one_value_for_all_heads(value: float) -> None:
    metric = Metric(name="score", meaning="it", values_LH=torch.full((1, 3), value))
    (drawn,) = data_of(head_explorer(HeadMaps(metrics=(metric,)), "heads"))["metrics"]
    assert drawn["color"] == [len(COLORS) if math.isnan(value) else 0] * 3


def test_static_heads_of_an_earlier_freeze(event: FreezeEvent) -> None:
    assert event.calibration is not None
    live_LH = event.calibration.live_LH.clone()
    live_LH[0, 0] = False
    later = dataclasses.replace(event, calibration=dataclasses.replace(event.calibration, live_LH=live_LH))
    maps = maps_of_event(later)
    assert maps is not None
    assert maps.marks[0, 0] in ("static before", "static")


def test_nothing_to_show_without_statistics(event: FreezeEvent) -> None:
    assert maps_of_event(dataclasses.replace(event, calibration=None)) is None
    assert maps_of_event(dataclasses.replace(event, plan=None)) is None


def test_text_in_the_data_cannot_end_the_script() -> None:
    metric = Metric(name="</script><b>", meaning="<i>", values_LH=torch.zeros(1, 1))
    html = head_explorer(HeadMaps(metrics=(metric,)), '"<x>')
    assert html.count("</script>") == 1
    assert "<b>" not in html
    assert "<x>" not in html


def test_a_sampled_pattern_is_near_the_exact_one() -> None:
    generator = torch.Generator().manual_seed(0)
    head = static_head(torch.randn(600, generator=generator) / 4, -torch.arange(600.0) / 50)
    exact_PP, sampled_PP = pooled_pattern(head, 16), pooled_pattern(head, 16, rows=8)
    torch.testing.assert_close(sampled_PP.sum(1), torch.ones(16, dtype=torch.float64))
    assert (exact_PP - sampled_PP).abs().max() < 0.05
    torch.testing.assert_close(pooled_pattern(head, 16, rows=600), exact_PP, rtol=0, atol=0)


@pytest.mark.parametrize(("selector", "shown"), [("kl", "kl"), ("mine", "mine"), ("list", "variance")])
def test_the_score_that_the_heads_were_chosen_by_is_shown_first(event: FreezeEvent, selector: str, shown: str) -> None:
    assert event.calibration is not None
    assert event.plan is not None
    scores = {
        "kl": event.calibration.kl_LH,
        "variance": event.calibration.variance_LH,
        "mine": -event.calibration.kl_LH,
    }
    calibrated = event.calibration.with_scores(mine=scores["mine"])
    maps = maps_of_freeze(calibrated, dataclasses.replace(event.plan, selector=selector), event.step)
    assert maps.metrics[0].name == shown
    torch.testing.assert_close(maps.metrics[0].values_LH, scores[shown])


def test_metrics_of_a_calibration_begin_with_the_one_asked_for() -> None:
    assert metrics_of(calibration(), first="kl")[0].name == "kl"
