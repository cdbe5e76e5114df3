"""The loop from prompts to tokens, and the choice of a token; covers generate/sampling.py as well."""

from __future__ import annotations

import pytest
import torch

from saf_titan.generate.sampling import Sampling, token_probabilities
from saf_titan.generate.text import generate
from tests.generate.tiny_models import VOCABULARY, T, freeze, full_logits, random_prompts, tiny


def texts(prompts: list[list[int]], *, max_new_tokens: int = 6, stop: int | None = None, **sampling: float) -> list:
    model = tiny("gpt")
    freeze(model, "rough", [(1,), (0, 2, 3)])
    steps = generate(
        model, prompts, max_new_tokens=max_new_tokens, sampling=Sampling(**sampling), stop=stop, vocab_size=60
    )
    return [[token for token in column if token is not None] for column in zip(*steps, strict=True)]


def test_greedy_tokens_are_those_of_the_whole_forward() -> None:
    prompts, model = random_prompts([4, 1, 9]), tiny("gpt")
    freeze(model, "rough", [(1,), (0, 2, 3)])
    for prompt, found in zip(prompts, texts(prompts, temperature=0), strict=True):
        sequence = list(prompt)
        for _ in range(6):
            sequence.append(int(full_logits(model, sequence)[-1, :60].argmax()))
        assert found == sequence[len(prompt) :]


def test_a_sampled_text_depends_on_its_seed_alone() -> None:
    first, second = random_prompts([4, 9])
    together = texts([first, second], seed=5)
    assert together[0] == texts([first], seed=5)[0]
    assert together[1] == texts([second], seed=6)[0]
    assert together[0] != texts([first], seed=7)[0]


def test_a_stopped_sequence_does_not_stop_the_others() -> None:
    prompts = random_prompts([4, 9])
    whole = texts(prompts, temperature=0)
    stop = whole[0][2]
    expected = [text[: text.index(stop)] if stop in text else text for text in whole]
    assert texts(prompts, temperature=0, stop=stop) == expected


def test_the_longest_text_that_the_model_allows() -> None:
    prompts = random_prompts([T - 2])
    assert len(texts(prompts, max_new_tokens=3)[0]) == 3
    with pytest.raises(ValueError, match=f"{T + 1} tokens are more"):
        texts(prompts, max_new_tokens=4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_output_that_is_not_finite_is_no_text(temperature: float) -> None:
    model = tiny("gpt")
    model.lm_head.weight.data[3, 0] = torch.nan
    steps = generate(model, random_prompts([4]), max_new_tokens=2, sampling=Sampling(temperature=temperature))
    with pytest.raises(ValueError, match="the model's output is not finite: its weights hold NaN"):
        next(steps)


def test_token_probabilities() -> None:
    logits_V = torch.tensor([0.5, 0.2, 0.3]).log()
    for options, expected in (
        ({}, [0.5, 0.2, 0.3]),
        ({"temperature": 0.5}, [25 / 38, 4 / 38, 9 / 38]),
        ({"temperature": 1e-9}, [1.0, 0.0, 0.0]),
        ({"top_k": 2}, [0.625, 0.0, 0.375]),
        ({"top_p": 0.6}, [0.625, 0.0, 0.375]),
        ({"top_p": 0.01}, [1.0, 0.0, 0.0]),
        ({"top_k": VOCABULARY}, [0.5, 0.2, 0.3]),
    ):
        found_V = token_probabilities(logits_V, Sampling(**options))
        torch.testing.assert_close(found_V, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}]
)
def test_settings_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} = "):
        Sampling(**options)


@pytest.mark.parametrize(
    ("prompts", "count", "message"),
    [
        ([], 1, "there is no prompt"),
        ([[1], []], 1, "prompt 1 is empty"),
        ([[1]], 0, "max_new_tokens = 0 must be at least"),
    ],
)
def test_prompts_without_tokens_are_refused(prompts: list[list[int]], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(generate(tiny("gpt"), prompts, max_new_tokens=count, sampling=Sampling()))
