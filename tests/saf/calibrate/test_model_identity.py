"""What tells the model of a file from other models: sizes that must agree, weights that may differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.model_identity import (
    QUERY_KEY,
    WEIGHTS,
    WatchedProjections,
    require_same_model,
    weights_digest,
)
from tests.saf.plans import plan_of
from tests.saf.synthetic import calibration

RUN = {"family": "gpt", "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "dim": 32, "vocab_size": 50, "bias": False}
FOLDER = {"model_type": "gpt2", "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "dim": 32, "vocab_size": 64}


def compared(then: dict[str, Any] | None, now: dict[str, Any] | None) -> str | None:
    return require_same_model(then, now, source="FILE", model="MODEL")


def test_a_model_is_the_model_of_its_own_files() -> None:
    for identity in (RUN, FOLDER):
        assert compared({**identity, WEIGHTS: "all:1"}, {**identity, WEIGHTS: "all:1"}) is None


@pytest.mark.parametrize("name", [name for name in RUN if name != "family"])
def test_each_size_and_constant_must_agree(name: str) -> None:
    with pytest.raises(ValueError, match=rf"FILE is of another model than MODEL: {name} is \w+ there and 7 here"):
        compared(RUN, {**RUN, name: 7})


def test_other_weights_are_said_and_not_refused() -> None:
    note = compared({**RUN, WEIGHTS: "all:1"}, {**RUN, WEIGHTS: "all:2"})
    assert note is not None
    assert note.startswith("FILE is of other weights than those of MODEL, and agrees with it in family, num_layers")


def test_a_run_and_a_folder_of_transformers_compare_what_both_know() -> None:
    # padded vocabularies and names of constants differ where the attention is the same
    assert "cannot be compared" in (compared({**RUN, WEIGHTS: "wq:1"}, {**FOLDER, WEIGHTS: "all:1"}) or "")
    with pytest.raises(ValueError, match="dim is 32 there and 64 here"):
        compared(RUN, {**FOLDER, "dim": 64})


@pytest.mark.parametrize("place", [0, 1])
def test_files_of_earlier_versions_are_accepted_and_said(place: int) -> None:
    identities = [RUN, RUN]
    identities[place] = None  # type: ignore[call-overload]
    note = compared(*identities)
    assert note is not None
    assert note.startswith(f"{('FILE', 'MODEL')[place]} does not tell of which model it is")


def test_statistics_and_plans_keep_the_identity() -> None:
    data = calibration([[0.1, 0.4], [0.2, 0.3]]).of_model({**RUN, WEIGHTS: "all:1"})
    again = Calibration.from_bytes(data.to_bytes())
    assert again.record.model == data.record.model == {**RUN, WEIGHTS: "all:1"}
    plan = plan_of(again, step=0, rate=0.5)
    assert type(plan).from_bytes(plan.to_bytes()).record.model == data.record.model


def test_the_digest_sees_a_change_anywhere_and_no_change_of_type() -> None:
    def weights(seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator) for shape in ((7, 5), (300, 40), (1,), (0, 3))]

    digest = weights_digest("all", weights())
    assert digest == weights_digest("all", [weight.bfloat16() for weight in weights()])
    assert digest == weights_digest(
        "all", [weight.t().contiguous().t() if weight.ndim == 2 else weight for weight in weights()]
    )
    others = [weights(1), weights()[::-1], [weight.t() for weight in weights() if weight.ndim == 2]]
    others += [
        [weight * 1.01 if i == changed else weight for i, weight in enumerate(weights())] for changed in (0, 1, 2)
    ]
    assert len({digest, *(weights_digest("all", other) for other in others)}) == 1 + len(others)


def test_watched_projections_are_those_of_the_first_forward() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk = nn.Linear(4, 6), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.wq(x)

    torch.manual_seed(0)
    layers = [Layer() for _ in range(3)]
    expected = weights_digest(QUERY_KEY, [weight for layer in layers for weight in (layer.wq.weight, layer.wk.weight)])
    with WatchedProjections(layers) as watched:
        # layers may run in any order, and more than once
        for layer in (*reversed(layers), layers[0]):
            layer(torch.zeros(1, 4))
    assert watched.digest == expected
    assert not any(layer._forward_pre_hooks for layer in layers)
