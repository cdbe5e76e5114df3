"""Train one-layer models on class-token sequences until they reach a loss.

Legend: S seeds, B sequences, N sequences of the test set, T tokens of a sequence, M outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rust_data import class_tokens
from saf_titan.one_layer.model import OneLayer, scalars
from saf_titan.one_layer.setting import Parametrization, Ramp, Task

Optimizer = Literal["gd", "sgd", "adamw"]
OPTIMIZERS: tuple[Optimizer, ...] = ("gd", "sgd", "adamw")

# added to the seeds of the test sets, so that they share no rows with the training sets
_TEST_SEED = 2**32


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of one experiment. Raises ValueError for settings that are out of range."""

    parametrization: Parametrization = "CACO"
    task: Task = field(default_factory=Task)
    ramp: Ramp = field(default_factory=Ramp)
    """Learning rate of the QK circuit over that of the OV circuit."""
    optimizer: Optimizer = "gd"
    """gd: every step takes the gradient of the whole task, one sequence of each class with each of its types once. sgd,
    adamw: every step takes a batch of sequences whose types are drawn."""
    rate: float = 1.0
    """Learning rate of the OV circuit."""
    batch_size: int = 32
    """Sequences of a batch, for sgd and adamw."""
    weight_decay: float = 0.0
    """For adamw only."""
    until_loss: float = 1e-3
    """NLL in nats of the test set (for gd: of the task) at which a seed stops."""
    max_steps: int = 100_000
    seeds: int = 5
    aligned: bool = False
    """Start from the weights that the theory assumes, with `init_scale` as the singular value of factorized circuits;
    otherwise draw all entries from N(0, init_scale^2)."""
    init_scale: float = 0.1
    full_vocabulary: bool = False
    """Softmax over all token types instead of over the labels."""
    double: bool = False
    """Compute in float64."""
    first_seed: int = 0
    """Model s of the S models takes its initial weights and its sequences from the seed `first_seed` + s."""

    def __post_init__(self) -> None:
        for name in ("rate", "init_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name):g}: must be positive and finite")
        # raises for a loss that is out of range
        self.task.margin_at(self.until_loss)
        for name in ("batch_size", "max_steps", "seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer = {self.optimizer!r}: choose one of {', '.join(OPTIMIZERS)}")


@dataclass(frozen=True, kw_only=True)
class Result:
    """S trained models, each at the step at which it reached the loss, or at the last step."""

    training: Training
    steps_S: Tensor
    """Steps taken, int64."""
    reached_S: Tensor
    """Whether the loss was reached, bool."""
    loss_S: Tensor
    """NLL of the test set, float64."""
    mass_SN: Tensor
    """Attention mass on distinct tokens of each test sequence, in [0, 1], float64."""
    probability_SN: Tensor
    """Probability of the right class of each test sequence, in [0, 1], float64."""
    gap_S: Tensor
    """Score gap of the theory, float64."""
    v_S: Tensor
    """OV scalar of the theory, float64."""

    @property
    def mass_S(self) -> Tensor:
        """Mean attention mass on distinct tokens of each seed, float64 (S,)."""
        return self.mass_SN.mean(1)


Progress = Callable[[int, float], object]
"""A function that is called with the step and the largest loss of the seeds that have not reached the loss."""


def train(training: Training, *, test_sequences: int = 1000, progress: Progress | None = None) -> Result:
    """Train all seeds as one batch and return the result; a seed's model is kept as it was on reaching the loss.

    Args:
        test_sequences: N, for sgd and adamw; for gd the test set is the task itself, one sequence of each class.
        progress: called after every check of the loss.

    Raises ValueError if the loss of a seed is no longer finite.
    """
    task = training.task
    dtype = torch.float64 if training.double else torch.float32
    outputs = task.vocab_size if training.full_vocabulary else None
    model = OneLayer(training.parametrization, task, seeds=training.seeds, num_outputs=outputs, dtype=dtype)
    if training.aligned:
        model.init_aligned(training.init_scale)
    else:
        model.init_random(training.init_scale, training.first_seed)
    test = _whole_task(training) if training.optimizer == "gd" else _drawn(training, test_sequences, 0, _TEST_SEED)
    check_every = 1 if training.optimizer == "gd" else 10
    optimizer = _optimizer(training, model)
    finished: list[Tensor] = [parameter.detach().clone() for parameter in model.parameters()]
    reached_S = torch.zeros(training.seeds, dtype=torch.bool)
    steps_S = torch.full((training.seeds,), training.max_steps)
    batches = _batches(training)

    for step in range(training.max_steps + 1):
        tokens_SBT, labels_SB = next(batches)
        loss_S = _loss(model, tokens_SBT, labels_SB)
        if step % check_every == 0 or step == training.max_steps:
            with torch.no_grad():
                test_loss_S = loss_S.detach() if training.optimizer == "gd" else _loss(model, *test)
            if not test_loss_S.isfinite().all():
                raise ValueError(
                    f"the loss is not finite after {step} steps; lower rate = {training.rate:g}, or the ratio "
                    f"({training.ramp.at(step):g} at this step)"
                )
            new_S = (test_loss_S <= training.until_loss) & ~reached_S
            for kept, parameter in zip(finished, model.parameters(), strict=True):
                kept[new_S] = parameter.detach()[new_S]
            steps_S[new_S] = step
            reached_S |= new_S
            if progress and not reached_S.all():
                progress(step, float(test_loss_S[~reached_S].max()))
        if reached_S.all() or step == training.max_steps:
            break
        for group, ratio in zip(optimizer.param_groups, (training.ramp.at(step), 1.0), strict=True):
            group["lr"] = training.rate * ratio
        optimizer.zero_grad()
        # seeds share no parameters, so the gradient of the sum holds the gradient of each seed
        loss_S.sum().backward()
        optimizer.step()

    with torch.no_grad():
        for kept, parameter in zip(finished, model.parameters(), strict=True):
            parameter[reached_S] = kept[reached_S]
        return _measure(training, model, test, steps_S, reached_S)


@torch.no_grad()
def _measure(
    training: Training, model: OneLayer, test: tuple[Tensor, Tensor], steps_S: Tensor, reached_S: Tensor
) -> Result:
    tokens_SNT, labels_SN = test
    logits_SNM, attention_SNT = model(tokens_SNT)
    distinct_SNT = tokens_SNT < training.task.classes * training.task.distinct
    log_p_SNM = logits_SNM.double().log_softmax(2)
    right_SN = log_p_SNM.gather(2, labels_SN[:, :, None]).squeeze(2)
    gap_S, v_S = scalars(model)
    return Result(
        training=training,
        steps_S=steps_S,
        reached_S=reached_S,
        loss_S=-right_SN.mean(1),
        mass_SN=(attention_SNT.double() * distinct_SNT).sum(2),
        probability_SN=right_SN.exp(),
        gap_S=gap_S,
        v_S=v_S,
    )


def _loss(model: OneLayer, tokens_SBT: Tensor, labels_SB: Tensor) -> Tensor:
    """Return the mean NLL of each seed, (S,)."""
    logits_SBM = model(tokens_SBT).logits_SBM
    return (
        F.cross_entropy(logits_SBM.flatten(0, 1), labels_SB.flatten(), reduction="none").view(labels_SB.shape).mean(1)
    )


def _optimizer(training: Training, model: OneLayer) -> torch.optim.Optimizer:
    groups = [{"params": list(model.qk)}, {"params": list(model.ov)}]
    if training.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=training.rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(groups, lr=training.rate)


def _batches(training: Training) -> Iterator[tuple[Tensor, Tensor]]:
    step = 0
    whole = _whole_task(training) if training.optimizer == "gd" else None
    while True:
        yield whole or _drawn(training, training.batch_size, step * training.batch_size, 0)
        step += 1


def _whole_task(training: Training) -> tuple[Tensor, Tensor]:
    """Return one sequence of each class with all its types, (S, K, T), and the labels, (S, K).

    Their gradient is the population gradient.
    """
    task = training.task
    rows = class_tokens.generate(
        task.classes,
        classes=task.classes,
        distinct=task.distinct,
        common=task.common,
        counts=(task.distinct, task.common),
        deterministic=True,
        seed=training.first_seed,
    )
    tokens_BT, labels_B = torch.from_numpy(rows.tokens).long(), torch.from_numpy(rows.labels).long()
    return tokens_BT.expand(training.seeds, -1, -1), labels_B.expand(training.seeds, -1)


def _drawn(training: Training, rows: int, first_row: int, offset: int) -> tuple[Tensor, Tensor]:
    """Return sequences with drawn types, (S, B, T), and their labels, (S, B); each seed has its own sequences."""
    task = training.task
    parts = [
        class_tokens.generate(
            rows,
            classes=task.classes,
            distinct=task.distinct,
            common=task.common,
            counts=(task.distinct, task.common),
            seed=training.first_seed + seed + offset,
            first_row=first_row,
            threads=1,
        )
        for seed in range(training.seeds)
    ]
    tokens_SBT = torch.from_numpy(np.stack([part.tokens for part in parts])).long()
    return tokens_SBT, torch.from_numpy(np.stack([part.labels for part in parts])).long()
