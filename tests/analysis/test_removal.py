"""Three ways to take tokens away, against definitions in float64, and predictors that use them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.analysis.removal import answer_predictor, edit_patterns, label_predictor, removing, without_tokens
from saf_titan.ops.attention_stats import attention_probs
from saf_titan.ops.pattern import attention_rows
from tests.layers.test_attention import GROUPED, B, D, H, T, attention, random_pattern
from tests.models.test_gpt import TINY, build

V = TINY.vocab_size


def removed_tokens(seed: int = 0, length: int = T) -> Tensor:
    removed = torch.rand(B, length, generator=torch.Generator().manual_seed(seed)) < 0.3
    removed[:, -1] = False
    return removed


def text(length: int = T) -> Tensor:
    return torch.randint(V, (B, length), generator=torch.Generator().manual_seed(5))


def test_edits_of_a_pattern() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]).expand(1, 2, 3, 3)
    removed = torch.tensor([[True, False, False]])
    value = edit_patterns(p, removed, "value")[0, 0]
    torch.testing.assert_close(value, torch.tensor([[0, 0, 0], [0, 0.5, 0], [0, 0.3, 0.5]]))
    edge = edit_patterns(p, removed, "edge")[0, 1]
    # a row without a key is zero
    torch.testing.assert_close(edge, torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0.375, 0.625]]))
    with pytest.raises(ValueError, match="way = 'token' does not change patterns"):
        edit_patterns(p, removed, "token")


@pytest.mark.parametrize("way", ["value", "edge"])
def test_a_layer_against_its_definition(way: str) -> None:
    module = attention(GROUPED)
    alpha, rho = random_pattern(1)
    module.set_static((1,), alpha, rho)
    x = torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(1))
    removed = removed_tokens()
    with torch.no_grad(), removing([module], removed, way):
        measured = module(x, None)

    weight = {name: getattr(module.qkv_linear, name).weight.double() for name in ("wq", "wk", "wv")}
    q, k, v = ((x.double() @ weight[name].T).unflatten(-1, (-1, D)) for name in ("wq", "wk", "wv"))
    q, k = (z.double() for z in module.rope(q.float(), k.float(), None))
    p = attention_probs(q, k)
    p[:, 1] = attention_rows(alpha.double(), rho.double(), 0, T)
    if way == "value":
        v = v.masked_fill(removed[:, :, None, None], 0.0)
    else:
        p = p.masked_fill(removed[:, None, None, :], 0.0)
        p = p / p.sum(-1, keepdim=True).clamp(min=1e-300)
    y = torch.einsum("bhij,bjhd->bihd", p, v.repeat_interleave(H // GROUPED, 2)).flatten(2)
    torch.testing.assert_close(measured.double(), y @ module.wo.weight.double().T, rtol=1e-4, atol=1e-5)


def test_a_removed_token_is_taken_out_of_the_sequence() -> None:
    removed = torch.tensor([[False, True, False, True], [False] * 4])
    assert without_tokens(removed).tolist() == [[0, 2, 1, 3], [0, 1, 2, 3]]
    torch.manual_seed(0)
    model = build(TINY, position="learned")
    model.init_states()
    tokens, removed = text(), removed_tokens()
    rows = torch.tensor([T - 1, T - 1])
    probability = label_predictor(model, tokens, rows, batch_size=1)(removed)
    with torch.no_grad():
        for b in range(B):
            expected = model(tokens[b][~removed[b]][None])[0, -1].double().softmax(-1)
            torch.testing.assert_close(probability[b], expected, rtol=1e-5, atol=1e-8)
        few = label_predictor(model, tokens, rows, labels=[3, 7])(removed)
    torch.testing.assert_close(few, probability[:, [3, 7]] / probability[:, [3, 7]].sum(1, keepdim=True))


def test_batches_make_no_difference() -> None:
    torch.manual_seed(0)
    model = build(TINY)
    model.init_states()
    attentions = [layer.attention for layer in model.layers.values()]
    for way in ("value", "edge", "token"):
        one, all_ = (
            label_predictor(model, text(), torch.tensor([9, T - 1]), way=way, attentions=attentions, batch_size=size)
            for size in (1, 2)
        )
        removed = removed_tokens()
        removed[0, 9] = False
        torch.testing.assert_close(one(removed), all_(removed))


def test_the_probability_of_an_answer() -> None:
    torch.manual_seed(0)
    model = build(TINY)
    model.init_states()
    tokens, answer, removed = text(), torch.zeros(B, T, dtype=torch.bool), removed_tokens()
    answer[0, 10:13] = answer[1, 20:21] = True
    removed &= ~(answer | answer.roll(-1, 1))
    probability = answer_predictor(model, tokens, answer)(removed)
    with torch.no_grad():
        for b in range(B):
            kept = ~removed[b]
            log_p = model(tokens[b][kept][None])[0].double().log_softmax(-1)
            where = answer[b][kept].nonzero()[:, 0]
            expected = log_p[where - 1, tokens[b][kept][where]].sum().exp()
            torch.testing.assert_close(probability[b, 0], expected, rtol=1e-5, atol=1e-12)


def test_what_is_refused() -> None:
    tokens, rows, none = text(), torch.tensor([3, 3]), torch.zeros(B, T, dtype=torch.bool)

    def never(tokens_BT: Tensor) -> Tensor:
        raise AssertionError

    with pytest.raises(ValueError, match="way = 'hide' is not one of value, edge, token"):
        label_predictor(never, tokens, rows, way="hide")
    with pytest.raises(ValueError, match="needs the model's attention layers"):
        label_predictor(never, tokens, rows, way="edge")
    with pytest.raises(ValueError, match="cannot be removed"):
        label_predictor(never, tokens, rows)(~none)
    with pytest.raises(ValueError, match=r"must be bool \(2, 24\), got torch.int64"):
        label_predictor(never, tokens, rows)(none.long())
    with pytest.raises(ValueError, match="an answer that does not begin at position 0"):
        answer_predictor(never, tokens, none)
