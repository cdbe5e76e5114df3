"""Train the patterns: alpha and rho of static heads are updated by an AdamW of their own, without decay.

The gradients are those of the prepared patterns' logits: preparing shifts alpha and rho by constants (the gauge), so
the gradients of the shifted and of the original vectors are equal. After each update the patterns are prepared again.

Legend: S static heads of a layer, T time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from saf_titan.saf.fit.pattern import CompactPattern, Pattern
from saf_titan.saf.plan.plan import StaticPlan


class PatternedAttention(Protocol):
    """A layer whose static heads can be given new patterns."""

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None: ...

    def pattern_logits(self) -> tuple[Tensor, Tensor]:
        """Return alpha and rho, (S, T) each, of the prepared patterns in use."""


class PatternTraining:
    """Trains the patterns of a plan; ``plan`` always holds their present values."""

    def __init__(
        self, attentions: Sequence[PatternedAttention], plan: StaticPlan, lr: float, group: dist.ProcessGroup | None
    ) -> None:
        """
        Args:
            lr: learning rate of the logits.
            group: ranks that read different data, over which gradients are added; None for one process.
        """
        self._attentions, self._group = attentions, group
        self.plan = plan
        # one parameter for each head, so that its moments are kept when other heads of the layer change
        self._vectors = {
            (head.layer, head.head): (
                torch.nn.Parameter(head.pattern.vectors[0].detach().clone()),
                torch.nn.Parameter(head.pattern.vectors[1].detach().clone()),
            )
            for head in plan.heads
        }
        self._layers = {layer: tuple(head.head for head in heads) for layer, heads in plan.layers().items()}
        parameters = [vector for vectors in self._vectors.values() for vector in vectors]
        self._optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._prepare()

    def step(self) -> None:
        """Update the patterns by the gradients of this optimizer step; every rank must call it.

        Without gradients this does nothing: torchtitan runs such a step to create the optimizer state it loads into.
        """
        if any(logits.grad is None for layer in self._layers for logits in self._attentions[layer].pattern_logits()):
            return
        for layer, heads in self._layers.items():
            for which, logits in enumerate(self._attentions[layer].pattern_logits()):
                gradient_ST = logits.grad
                assert gradient_ST is not None
                if self._group is not None:
                    dist.all_reduce(gradient_ST, group=self._group)
                for head, gradient_T in zip(heads, gradient_ST, strict=True):
                    vector_T = self._vectors[layer, head][which]
                    vector_T.grad = gradient_T.to(vector_T.device)
        self._optimizer.step()
        self._update_plan()
        self._prepare()

    def moments(self) -> dict[str, Tensor]:
        """Return the optimizer state as named tensors, ``L0H3.alpha.exp_avg`` and so on."""
        return {
            f"{prefix}{name}": value
            for prefix, vector_T in self._named_vectors()
            for name, value in self._optimizer.state.get(vector_T, {}).items()
        }

    def load_moments(self, moments: Mapping[str, Tensor]) -> None:
        """Load what :meth:`moments` returned. Heads not in it start without moments; moments of others are ignored."""
        for prefix, vector_T in self._named_vectors():
            state = {name.removeprefix(prefix): x.clone() for name, x in moments.items() if name.startswith(prefix)}
            if state:
                self._optimizer.state[vector_T] = state

    def _named_vectors(self) -> Iterator[tuple[str, Tensor]]:
        for (layer, head), vectors in self._vectors.items():
            for name, vector_T in zip(("alpha", "rho"), vectors, strict=True):
                yield f"L{layer}H{head}.{name}.", vector_T

    @torch.no_grad()
    def _prepare(self) -> None:
        for layer, heads in self._layers.items():
            attention = self._attentions[layer]
            vectors = zip(*(self._vectors[layer, head] for head in heads), strict=True)
            alpha_ST, rho_ST = (torch.stack(vectors_T) for vectors_T in vectors)
            attention.set_static(heads, alpha_ST, rho_ST)
            for logits in attention.pattern_logits():
                logits.requires_grad_()

    def _update_plan(self) -> None:
        heads = tuple(
            dataclasses.replace(head, pattern=_trained(head.pattern, *self._vectors[head.slot]))
            for head in self.plan.heads
        )
        self.plan = dataclasses.replace(self.plan, heads=heads)


def _trained(pattern: Pattern, alpha_T: Tensor, rho_T: Tensor) -> CompactPattern:
    assert isinstance(pattern, CompactPattern)
    return dataclasses.replace(pattern, alpha_T=alpha_T.detach().cpu().clone(), rho_T=rho_T.detach().cpu().clone())
