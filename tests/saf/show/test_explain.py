"""The readable ranking and its rank correlations."""

import math
import re

import pytest
import torch

from saf_titan.saf.show.explain import explain, spearman
from tests.saf.plans import plan_of
from tests.saf.synthetic import calibration


def test_spearman_of_known_orders() -> None:
    a = torch.tensor([0.1, 10.0, 2.0, 3.0])
    assert spearman(a, a.exp()) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)
    # ranks 0 3 1 2 against 0 1 2 3: 1 - 6 * 6 / (4 * 15)
    assert spearman(a, torch.arange(4)) == pytest.approx(0.4)


def test_spearman_shares_the_rank_of_ties() -> None:
    # ranks 0.5 0.5 2 against 0 1 2
    assert spearman(torch.tensor([1.0, 1.0, 2.0]), torch.arange(3)) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(spearman(torch.ones(1), torch.ones(1)))


def test_the_ranking_lists_every_live_head_once() -> None:
    data = calibration([[0.1, math.nan, 0.3], [0.2, 0.5, 0.4]]).with_scores(redundancy=torch.rand(2, 3))
    lines = explain(data).splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["L0H0", "L1H0", "L0H2", "L1H2", "L1H1"]
    assert "Spearman" in lines[7]
    assert [line.split()[0] for line in lines[9:]] == ["variance", "kl", "redundancy"]
    assert lines[9].split()[1] == "1.000"
    by_kl = explain(data, selector="kl", top=2).splitlines()
    assert by_kl[0].split()[:2] == ["head", "kl"]
    assert by_kl[3] == ""


def test_the_plan_is_marked() -> None:
    data = calibration([[0.1, 0.2], [0.3, 0.4]], unfit=((0, 0),))
    lines = explain(data, plan=plan_of(data, step=0, rate=0.25)).splitlines()
    assert "skipped: fit KL" in lines[1]
    assert "static, fit KL 0.000 nat" in lines[2]
    assert lines[3].endswith("1.000") or "static" not in lines[3]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "varience",
            "'varience' is no selector; did you mean variance? The scores in these statistics are kl, variance",
        ),
        ("xyz", "'xyz' is no selector; the scores in these statistics are kl, variance"),
        # a selector, which was not measured
        ("output_error", "this calibration has no scores 'output_error', it has kl, variance: add"),
    ],
)
def test_a_word_without_scores_is_refused(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        explain(calibration([[0.1, 0.2]]), selector=word)
