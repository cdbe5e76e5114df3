"""Position ids and masks of a caller: static heads follow them, or the forward stops with one error."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from saf_titan.hf.attention import attention
from tests.hf.test_use import frozen_model, logits_of
from tests.hf.tiny import MODEL_TYPES, T, tokens


@pytest.fixture(scope="module", params=MODEL_TYPES)
def model(request: pytest.FixtureRequest) -> Any:
    return frozen_model(request.param)


@pytest.mark.parametrize("ids", [[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 9, 10, 11], [5, 6, 7, 8, 9, 10, 11]], ids=str)
@pytest.mark.parametrize("inputs", ["cache", "mask", "neither"])
def test_positions_that_do_not_count_one_text_are_refused(model: Any, ids: list[int], inputs: str) -> None:
    """Transformers looks for packed sequences only where there is neither a cache nor a mask."""
    text = tokens(2, len(ids))
    positions = torch.stack([torch.arange(len(ids)), torch.tensor(ids)])
    given = {"attention_mask": torch.ones_like(text)} if inputs == "mask" else {}
    with pytest.raises(ValueError, match=f"position_ids of row 1 are {ids[0]}, {ids[1]}, .* packs sequences or skips"):
        logits_of(model, text, position_ids=positions, use_cache=inputs == "cache", **given)
    # a second sequence behind one that is in the cache
    if inputs == "cache" and ids[0] == 0:
        cache = DynamicCache(config=model.config)
        logits_of(model, text[:, :3], cache=cache, use_cache=True)
        with pytest.raises(ValueError, match="do not count the tokens of one text from 3"):
            logits_of(model, text[:, 3:], cache=cache, use_cache=True, position_ids=positions[:, 3:])


@pytest.mark.parametrize("pads", [0, 3])
def test_positions_of_one_text_with_and_without_its_padding(model: Any, pads: int) -> None:
    """The same logits, in one forward and with a cache, as those of the text alone."""
    text = tokens(2, T, seed=1)
    alone = logits_of(model, text)
    mask = torch.ones(2, pads + T, dtype=torch.int64)
    mask[:, :pads] = 0
    padded = torch.nn.functional.pad(text, (pads, 0))
    counted = (mask.cumsum(1) - 1).clamp(min=0)
    given = {"attention_mask": mask, "position_ids": counted}
    torch.testing.assert_close(logits_of(model, padded, **given)[:, pads:], alone, rtol=1e-4, atol=1e-4)
    cache = DynamicCache(config=model.config)
    for start, stop in [(0, 2), (2, 9), (9, pads + T)]:
        found = logits_of(
            model,
            padded[:, start:stop],
            cache=cache,
            use_cache=True,
            attention_mask=mask[:, :stop],
            position_ids=counted[:, start:stop],
        )
        kept = slice(max(start - pads, 0), stop - pads)
        if stop > pads:
            torch.testing.assert_close(found[:, -len(range(T)[kept]) :], alone[:, kept], rtol=1e-4, atol=1e-4)


def test_a_cache_that_is_cut_grown_and_reordered(model: Any) -> None:
    """As beams, several samples of a prompt, and drafts that are taken back do."""
    text = tokens(2, T, seed=9)
    whole = logits_of(model, text)
    # one that keeps all keys, because only such a cache can be cut
    cache = DynamicCache()

    def read(rows: list[int], start: int, stop: int) -> None:
        found = logits_of(model, text[rows, start:stop], cache=cache, use_cache=True)
        torch.testing.assert_close(found, whole[rows, start:stop], rtol=1e-4, atol=1e-4)

    read([0, 1], 0, 15)
    cache.crop(-6)
    read([0, 1], 9, 14)
    cache.batch_repeat_interleave(3)
    read([0, 0, 0, 1, 1, 1], 14, 15)
    cache.batch_select_indices(torch.tensor([0, 5]))
    read([0, 1], 15, 17)
    cache.reorder_cache(torch.tensor([1, 0]))
    read([1, 0], 17, T)


def test_a_mask_of_the_new_tokens_alone_is_refused(model: Any) -> None:
    """Transformers would hide the newest keys from live heads."""
    text, cache = tokens(1, 6), DynamicCache(config=model.config)
    logits_of(model, text[:, :5], cache=cache, use_cache=True)
    with pytest.raises(ValueError, match="the attention mask has 1 columns for 6 tokens; it needs one for each token"):
        logits_of(model, text[:, 5:], cache=cache, use_cache=True, attention_mask=torch.ones(1, 1, dtype=torch.int64))


@pytest.mark.parametrize("use_cache", [False, True])
def test_attention_both_ways_is_refused(use_cache: bool) -> None:
    model = frozen_model("llama")
    model.config.is_causal = False
    with pytest.raises(ValueError, match="attends in blocks or both ways"):
        logits_of(model, tokens(), use_cache=use_cache)


def test_attention_without_a_mask_or_without_some_heads_is_refused() -> None:
    module = frozen_model("gpt2").attentions[0].module
    q_BHRD = torch.randn(1, 4, 5, 8)
    with pytest.raises(ValueError, match=r"attention without a mask, as with a paged cache"):
        attention(module, q_BHRD, q_BHRD, q_BHRD, None)
    with pytest.raises(ValueError, match=r"got 2 of the 4 heads: .* load the model without tensor parallelism"):
        attention(module, *[q_BHRD[:, :2]] * 3, None)
