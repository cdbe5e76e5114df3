"""A passage holds the weights it was given, and shows those of its last token without a click.

Covers report/passage.py.
"""

import base64
import json
import math
import re

import numpy as np
import pytest
import torch

from saf_titan.report.passage import Weights, passage

TOKENS = ["The", " cat", "\n", "<b>"]


def weights(*names: str) -> list[Weights]:
    generator = torch.Generator().manual_seed(0)
    entries = []
    for name in names:
        attention_TT = torch.rand(4, 4, generator=generator).tril()
        attention_TT /= attention_TT.sum(1, keepdim=True)
        contribution_TT = torch.randn(4, 4, generator=generator).tril()
        entries.append(Weights(name=name, by_measure=(("attention", attention_TT), ("contribution", contribution_TT))))
    return entries


def test_every_weight_is_in_the_page_to_a_thousandth() -> None:
    entries = weights("layer 0", "L0H0")
    html = passage(TOKENS, entries, "the text")
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    data = json.loads(text)
    assert data["measures"] == ["attention", "contribution"]
    for entry, stored in zip(entries, data["weights"], strict=True):
        for (_, values_TT), cells in zip(entry.by_measure, stored, strict=True):
            found = np.frombuffer(base64.b64decode(cells), "<i2") / data["scale"]
            assert np.abs(found - values_TT.numpy()[np.tril_indices(4)]).max() <= 0.0005 + 1e-7


def test_the_last_token_is_shown_first() -> None:
    entries = weights("layer 0")
    html = passage(TOKENS, entries, "the text")
    shown = [float(share) for share in re.findall(r'style="--share:(.*?)"', html)]
    expected = [value for _, values_TT in entries[0].by_measure for value in values_TT[-1].tolist()]
    assert shown == pytest.approx(expected, rel=1e-3)
    assert "<b>" not in html
    assert "⏎" in html


def test_unknown_and_extreme_weights() -> None:
    values_TT = torch.tensor([[math.nan, 0.0], [-99.0, 99.0]])
    html = passage(["a", "b"], [Weights(name="L0H0", by_measure=(("c", values_TT),))], "x")
    (cells,) = re.findall(r'"weights":\[\["(.*?)"\]\]', html)
    assert np.frombuffer(base64.b64decode(cells), "<i2").tolist() == [-32768, -32767, 32767]
    # what is not known has no colour
    html = passage(["a"], [Weights(name="L0H0", by_measure=(("c", values_TT[:1, :1]),))], "x")
    assert 'style="--share:0"' in html


def test_matrices_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"L0H0, c: expected \(3, 3\)"):
        passage(["a", "b", "c"], [Weights(name="L0H0", by_measure=(("c", torch.zeros(2, 2)),))], "x")


def test_other_measures_are_refused() -> None:
    first, second = weights("layer 0", "L0H0")
    other = Weights(name="L0H1", by_measure=second.by_measure[:1])
    with pytest.raises(ValueError, match="L0H1 has other measures than layer 0"):
        passage(TOKENS, [first, other], "x")
