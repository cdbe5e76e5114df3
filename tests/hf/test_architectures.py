"""Every architecture: statistics against transformers' own attention weights, static heads against float64.

Covers hf/attention.py, hf/layer.py, hf/layouts.py, hf/masks.py, hf/measure.py, hf/model.py, hf/static_heads.py,
hf/text.py.
"""

import pytest
import torch

from saf_titan.hf.measure import calibrate_model, measure_dense
from saf_titan.hf.model import TESTED
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings
from tests.hf.reference import reference_logits
from tests.hf.tiny import MODEL_TYPES, T, our_model, stock_model, tokens


def test_the_tiny_models_are_the_supported_ones() -> None:
    assert MODEL_TYPES == TESTED


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_statistics_are_those_of_the_eager_attention_weights(model_type: str) -> None:
    calibration = calibrate_model(our_model(model_type), tokens())
    with torch.no_grad():
        attentions = stock_model(model_type).double()(tokens(), output_attentions=True).attentions
    for layer, p_BHTT in enumerate(attentions):
        mean_HTT = p_BHTT.mean(0)
        log_mean_HTT = mean_HTT.clamp(min=1e-300).log()
        expected = {
            "variance_LH": p_BHTT.var(0).mean((1, 2)),
            "kl_LH": (torch.special.xlogy(p_BHTT, p_BHTT) - p_BHTT * log_mean_HTT).sum(3).mean((0, 2)),
            "column_mass_LHT": mean_HTT.sum(1),
            "diagonal_mass_LHT": torch.stack([mean_HTT.diagonal(-k, 1, 2).sum(-1) for k in range(T)], dim=1),
            "neg_entropy_LH": (mean_HTT * log_mean_HTT).sum((1, 2)),
        }
        for name, value in expected.items():
            actual = getattr(calibration, name)[layer]
            torch.testing.assert_close(actual, value, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("content", ["mean", "prune", "dense_mean"])
def test_frozen_logits_are_those_of_the_definition(model_type: str, content: str) -> None:
    model = our_model(model_type)
    calibration = calibrate_model(model, tokens())
    dense = measure_dense(model, tokens())
    plan = make_plan(
        calibration, PlanSettings(rate=0.5, max_fit_kl=100.0, selector="random", seed=3, content=content), dense=dense
    )
    model.set_plan(plan)
    model.zero_unused_weights()
    # another text, and shorter than the patterns
    for batch in (tokens(3, seed=1), tokens(2, T - 5, seed=2)):
        with torch.no_grad():
            logits = model(batch).logits
        expected = reference_logits(model_type, plan, batch)
        torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)
        assert (logits - stock_model(model_type)(batch).logits).abs().max() > 1e-2
