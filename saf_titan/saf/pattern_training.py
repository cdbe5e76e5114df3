"""Patterns that go on learning: alpha and rho of static heads under an AdamW of their own, without decay.

The gradients are those of the prepared patterns' logits: preparing shifts alpha and rho by constants (the gauge), so
the derivative by the shifted and by the plain vectors is the same. After each update the patterns are prepared anew.

Legend: S static heads of a layer, T time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from saf_titan.saf.plan import StaticPlan


class PatternedAttention(Protocol):
    """A layer whose static heads can be given new patterns."""

    def set_static(self, heads: tuple[int, ...], alpha_ST: Tensor, rho_ST: Tensor) -> None: ...

    def pattern_logits(self) -> tuple[Tensor, Tensor]:
        """alpha and rho [S, T] of the prepared patterns in use."""


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
        self._layers = {
            layer: (heads, torch.nn.Parameter(alpha_ST.clone()), torch.nn.Parameter(rho_ST.clone()))
            for layer, (heads, alpha_ST, rho_ST) in plan.layers().items()
        }
        parameters = [vector for _, *vectors in self._layers.values() for vector in vectors]
        self._optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._prepare()

    def step(self) -> None:
        """Update the patterns by the gradients of this optimizer step; every rank must call it.

        Nothing happens without gradients: torchtitan takes such a step to make the state that it loads into.
        """
        if any(logits.grad is None for layer in self._layers for logits in self._attentions[layer].pattern_logits()):
            return
        for layer, (_, *parameters) in self._layers.items():
            for parameter, logits in zip(parameters, self._attentions[layer].pattern_logits(), strict=True):
                assert logits.grad is not None
                gradient = logits.grad.to(parameter.device)
                if self._group is not None:
                    dist.all_reduce(gradient, group=self._group)
                parameter.grad = gradient
        self._optimizer.step()
        self._update_plan()
        self._prepare()

    def moments(self) -> dict[str, Tensor]:
        """Optimizer state as named tensors."""
        return {
            f"{index}.{name}": value
            for index, state in self._optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }

    def load_moments(self, moments: dict[str, Tensor]) -> None:
        """Inverse of :meth:`moments`."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in moments.items():
            index, name = key.split(".")
            state.setdefault(int(index), {})[name] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})

    @torch.no_grad()
    def _prepare(self) -> None:
        for layer, (heads, alpha_ST, rho_ST) in self._layers.items():
            attention = self._attentions[layer]
            attention.set_static(heads, alpha_ST.detach(), rho_ST.detach())
            for logits in attention.pattern_logits():
                logits.requires_grad_()

    def _update_plan(self) -> None:
        vectors = {
            (layer, head): (alpha_ST[index].detach().cpu().clone(), rho_ST[index].detach().cpu().clone())
            for layer, (heads, alpha_ST, rho_ST) in self._layers.items()
            for index, head in enumerate(heads)
        }
        heads = tuple(
            dataclasses.replace(head, alpha_T=alpha_T, rho_T=rho_T)
            for head in self.plan.heads
            for alpha_T, rho_T in [vectors[head.layer, head.head]]
        )
        self.plan = dataclasses.replace(self.plan, heads=heads)
