"""Decoding with a cache gives what the whole forward gives, at every step, in every kind of model and head.

Covers generate/attention.py, generate/cache.py, generate/layout.py and generate/progress.py as well.
"""

from __future__ import annotations

import pytest
import torch

from saf_titan.generate.cached_model import cached
from saf_titan.generate.sums import BLOCK
from saf_titan.models.decoder import FreezableDecoder
from tests.generate.tiny_models import KINDS, T, freeze, full_logits, random_prompts, tiny

SOME = {"gpt": [(1,), (0, 2, 3)], "llama3": [(3,), (0, 1, 2, 5)]}
"""Static heads of each layer, for a kv head a query head."""
GROUPS = {"gpt-grouped": [(0, 1), (1, 2, 3)], "qwen3": [(0, 1, 5), (2, 3)]}
"""Whole groups and parts of groups."""
RAGGED = [5, 1, 9]


def heads_of(kind: str) -> list[tuple[int, ...]]:
    return GROUPS.get(kind) or SOME[kind.partition("-")[0]]


def largest_error(model: FreezableDecoder, lengths: list[int], num_steps: int, *, states: bool = True) -> float:
    """Largest difference of any logit at any step from those of the whole forward."""
    sequences = random_prompts([length + num_steps for length in lengths])
    worst = 0.0
    with cached(model, max(lengths) + num_steps, states=states) as decoder:
        steps = [decoder.prefill([s[:n] for s, n in zip(sequences, lengths, strict=True)])]
        for step in range(num_steps):
            steps.append(decoder.step([s[n + step] for s, n in zip(sequences, lengths, strict=True)]))
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        expected_NV = full_logits(model, sequence)[length - 1 :]
        found_NV = torch.stack([logits_BV[row] for logits_BV in steps])
        worst = max(worst, (found_NV - expected_NV).abs().max().item() / expected_NV.abs().max().item())
    return worst


@pytest.mark.parametrize("lengths", [[4, 4], RAGGED], ids=str)
@pytest.mark.parametrize("way", ["live", "rough", "smooth", "dense", "pruned"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_equals_the_whole_forward(kind: str, way: str, lengths: list[int]) -> None:
    model = tiny(kind)
    if way != "live":
        freeze(model, way, heads_of(kind))
    assert largest_error(model, lengths, 8) < 1e-5


@pytest.mark.parametrize("backend", ["naive", "split", "fused"])
def test_every_back_end_of_the_model(backend: str) -> None:
    model = tiny("gpt-grouped", backend=backend)
    freeze(model, "rough", GROUPS["gpt-grouped"])
    assert largest_error(model, RAGGED, 8) < 1e-5


@pytest.mark.parametrize("way", ["rough", "smooth", "pruned"])
@pytest.mark.parametrize("kind", ["gpt", "gpt-grouped"])
def test_layers_without_a_live_head(kind: str, way: str) -> None:
    model = tiny(kind)
    freeze(model, way, [(0, 1, 2, 3), (0, 1, 2, 3)])
    assert largest_error(model, RAGGED, 5) < 1e-5


def test_memory_that_holds_nan_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter sequence has unwritten entries behind its end, which the sum over the longest length multiplies."""

    def poisoned(x: torch.Tensor, *size: int, **options: object) -> torch.Tensor:
        return x.new_full(size, torch.nan, **options)  # type: ignore[arg-type]

    model = tiny("gpt")
    freeze(model, "rough", SOME["gpt"])
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    assert largest_error(model, RAGGED, 8) < 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_random_heads_and_lengths(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    kind, way = KINDS[number(0, len(KINDS))], ("rough", "smooth", "dense", "pruned")[number(0, 4)]
    model = tiny(kind)
    num_heads = model.layers["0"].attention.n_heads
    chosen = [torch.randperm(num_heads, generator=generator)[: number(0, num_heads + 1)] for _ in range(2)]
    freeze(model, way, [tuple(sorted(heads.tolist())) for heads in chosen], seed=seed)
    lengths = [number(1, 90) for _ in range(number(1, 4))]
    assert largest_error(model, lengths, number(1, 20)) < 1e-5, (kind, way, chosen, lengths)


@pytest.mark.parametrize("lengths", [[3], [70, 1, 150]], ids=str)
@pytest.mark.parametrize("kind", ["gpt", "gpt-grouped", "qwen3"])
def test_states_of_fixed_size_across_the_band(kind: str, lengths: list[int]) -> None:
    """Prompts that end before, in and behind the exact band, and enough steps to cross it."""
    model = tiny(kind)
    freeze(model, "smooth", heads_of(kind))
    with cached(model, T) as decoder:
        ways = {choice.way for choices in decoder.choices for choice in choices}
    assert "state" in ways
    num_steps = T - max(lengths) if len(lengths) == 1 else 45
    assert largest_error(model, lengths, num_steps) < 1e-5
    assert largest_error(model, lengths, 10, states=False) < 1e-5


def test_patterns_beyond_fp32_factors() -> None:
    """Logits so far apart that single factors of a row underflow."""
    model = tiny("gpt")
    alpha_ST, rho_ST = 40 * torch.randn(1, T, generator=torch.Generator().manual_seed(0)), torch.zeros(1, T)
    alpha_ST[:, 0] = -150
    model.layers["0"].attention.set_static((2,), alpha_ST, rho_ST)
    assert largest_error(model, RAGGED, 8) < 1e-5


@pytest.mark.parametrize("way", ["live", "rough", "smooth"])
def test_bfloat16_errs_no_more_than_the_whole_forward(way: str) -> None:
    def logits(dtype: torch.dtype, *, with_cache: bool) -> torch.Tensor:
        model = tiny("gpt")
        for parameter in model.parameters():
            # the weights of all three are those of bfloat16
            parameter.data = parameter.data.bfloat16().to(dtype)
        if way != "live":
            freeze(model, way, SOME["gpt"])
        [sequence] = random_prompts([160])
        if not with_cache:
            return full_logits(model, sequence)[99:]
        with cached(model, T) as decoder:
            return torch.cat([decoder.prefill([sequence[:100]]), *(decoder.step([token]) for token in sequence[100:])])

    exact_NV = logits(torch.float32, with_cache=False)
    whole, stepwise = (
        (logits(torch.bfloat16, with_cache=with_cache) - exact_NV).square().mean().sqrt()
        for with_cache in (False, True)
    )
    assert stepwise < 1.5 * whole


def test_bytes_of_the_cache() -> None:
    """A quarter of static heads leaves 87.5 %, a half 75 %; keys of a group go with its last live head."""

    def num_bytes(kind: str, way: str, heads: tuple[int, ...], *, states: bool = False) -> int:
        model = tiny(kind)
        freeze(model, way, [heads, heads])
        with cached(model, T, states=states) as decoder:
            decoder.prefill([[1, 2]])
            return decoder.num_bytes

    # two layers: outputs of one head that are summed ahead, in fp32
    ahead = 2 * BLOCK * 8 * 4
    whole = num_bytes("gpt", "rough", ())
    assert whole == 2 * 2 * 4 * T * 8 * 4
    assert num_bytes("gpt", "rough", (1,)) - ahead == 0.875 * whole
    assert num_bytes("gpt", "rough", (0, 3)) - 2 * ahead == 0.75 * whole
    assert num_bytes("gpt", "pruned", (0, 3)) == 0.5 * whole
    assert num_bytes("gpt", "pruned", (0, 1, 2, 3)) == 0
    grouped = num_bytes("gpt-grouped", "rough", ())
    assert grouped == whole / 2
    assert num_bytes("gpt-grouped", "rough", (1, 2)) - 2 * ahead == grouped
    assert num_bytes("gpt-grouped", "rough", (0, 1)) - 2 * ahead == 0.75 * grouped
    assert num_bytes("gpt-grouped", "pruned", (0, 1)) == 0.5 * grouped
    # 65 values in fp32 and 17 sums in fp64 take the place of T values
    assert num_bytes("gpt", "smooth", (0, 3), states=True) == 0.5 * whole + 2 * 2 * 8 * (65 * 4 + 17 * 8)


def test_the_planner_says_which_and_why() -> None:
    model = tiny("gpt-grouped")
    freeze(model, "smooth", [(0, 1), (1, 2, 3)])
    with cached(model, T) as decoder:
        first, second = decoder.choices
        assert [choice.way for choice in first] == ["state", "state"]
        assert first[0].reason.endswith("of a state <= 1e-05")
        assert [choice.way for choice in second] == ["values", "state", "state"]
        assert second[0].reason == "another head reads the values of kv head 0"
    with cached(model, 90) as decoder:
        assert "not larger than a state" in decoder.choices[0][0].reason
    freeze(model, "rough", [(0, 1), ()])
    with cached(model, T) as decoder:
        assert decoder.choices[0][0].way == "values"
        assert decoder.choices[0][0].reason.endswith("of a state > 1e-05")
    freeze(model, "dense", [(0, 1), ()])
    with cached(model, T) as decoder:
        assert decoder.choices[0][0].reason == "the pattern is a matrix"
    freeze(model, "pruned", [(0, 1), ()])
    with cached(model, T) as decoder:
        assert decoder.choices[0][0].way == "none"


@pytest.mark.parametrize(
    ("kind", "message"), [("gpt-learned", f"{T} learned positions"), ("llama3", f"rotations are made for {T}")]
)
def test_longer_than_the_model_is_refused_at_once(kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message), cached(tiny(kind), T + 1):
        pass


def test_longer_than_the_patterns_is_refused_at_once() -> None:
    model = tiny("gpt")
    model.layers["1"].attention.set_static((0,), torch.zeros(1, 50), torch.zeros(1, 50))
    with pytest.raises(ValueError, match=r"51 tokens are more .* fitted to sequences of 50 tokens"), cached(model, 51):
        pass


def test_the_model_is_as_before_afterwards() -> None:
    model = tiny("gpt").train()
    attentions = [layer.attention for layer in model.layers.values()]
    with pytest.raises(RuntimeError, match="stop"), cached(model, T):
        raise RuntimeError("stop")
    assert [layer.attention for layer in model.layers.values()] == attentions
    assert model.training


def test_prompts_and_tokens_that_do_not_fit_the_cache_are_refused() -> None:
    model = tiny("gpt")
    with cached(model, 4) as decoder:
        with pytest.raises(ValueError, match="1 tokens for 0 prompts: give one for each prompt of `prefill`"):
            decoder.step([1])
        with pytest.raises(ValueError, match="a prompt has 5 tokens, and the caches were made for 4"):
            decoder.prefill([[1], [1, 2, 3, 4, 5]])
        decoder.prefill([[1, 2, 3], [1]])
        # one token for two sequences would go to both
        with pytest.raises(ValueError, match="1 tokens for 2 prompts"):
            decoder.step([1])
        decoder.step([1, 2])
        with pytest.raises(ValueError, match="made for 4 tokens and are full"):
            decoder.step([1, 2])
        # a batch of another size begins anew
        found = decoder.prefill([[5], [6, 7, 8], [9]])
    for row, prompt in enumerate([[5], [6, 7, 8], [9]]):
        torch.testing.assert_close(found[row], full_logits(model, prompt)[-1], rtol=1e-5, atol=1e-5)
