"""The analysis of attention patterns and the removal of tokens in models of transformers."""

from __future__ import annotations

import pytest
import torch

from saf_titan.analysis.patterns import attention_from, using_patterns
from saf_titan.analysis.removal import label_predictor
from tests.hf.test_use import frozen_model, logits_of
from tests.hf.tiny import T, our_model, stock_model, tokens

# windows, capped scores, grouped kv heads, one matrix for queries, keys and values
MODEL_TYPES = ("gpt2", "mistral", "gemma2")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_rows_are_the_attentions_of_transformers(model_type: str) -> None:
    model, stock = our_model(model_type), stock_model(model_type)
    text, rows = tokens(3), torch.tensor([4, T - 1, 11])
    measured = attention_from(model.attentions, lambda x: model(input_ids=x, use_cache=False), text, rows)
    with torch.no_grad():
        expected = stock(input_ids=text, output_attentions=True, use_cache=False).attentions
    for layer, p_BHTT in enumerate(expected):
        torch.testing.assert_close(
            measured[:, layer].float(), p_BHTT[torch.arange(3), :, rows], rtol=1e-4, atol=1e-6, msg=f"layer {layer}"
        )


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_frozen_model_that_goes_on_with_its_own_patterns_does_what_it_did(model_type: str) -> None:
    model, text = frozen_model(model_type), tokens(2)
    expected = logits_of(model, text)
    with using_patterns(model.attentions, lambda layer, p_BHTT: p_BHTT):
        torch.testing.assert_close(logits_of(model, text), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(logits_of(model, text), expected)


# a value of zero leaves the key in sight
@pytest.mark.parametrize("way", ["edge", "token"])
def test_removed_tokens_of_a_frozen_model_do_not_matter(way: str) -> None:
    model, text, rows = frozen_model("llama"), tokens(2), torch.tensor([T - 1, 15])
    removed = torch.zeros_like(text, dtype=torch.bool)
    removed[:, 3:6] = True
    # what stands in the place of a removed token is not seen
    other = torch.where(removed, (text - 2) % 47 + 3, text)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return model(input_ids=x, use_cache=False).logits

    first, second = (
        label_predictor(forward, x, rows, way=way, attentions=model.attentions)(removed) for x in (text, other)
    )
    whole = label_predictor(forward, text, rows)(torch.zeros_like(removed))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-7)
    assert (first - whole).abs().max() > 1e-4
