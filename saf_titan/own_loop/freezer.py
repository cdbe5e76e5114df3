"""The freeze in a training loop of your own, called between two optimizer steps.

Legend: B sequences, T time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from saf_titan.heads.names import head_name
from saf_titan.ops.static_mix.planner import device_obstacle
from saf_titan.own_loop.heads import FreezableHeads
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.calibrate.model_identity import WEIGHTS, weights_digest
from saf_titan.saf.install.guard import guard_heads
from saf_titan.saf.install.install import moments
from saf_titan.saf.plan.agreement import require_agreement
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings
from saf_titan.saf.select.registry import SELECTORS


class Freezer:
    """Makes heads of a model static. The state dict of the model holds the result, so nothing else has to be saved.

    Every rank creates one `Freezer`, with the same settings. The model may be wrapped in DistributedDataParallel or
    compiled.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, **settings: Any) -> None:
        """
        Args:
            model: has a `FreezableHeads` in each attention layer.
            optimizer: a freeze zeroes the optimizer state of the weights that static heads no longer use.
            settings: fields of `PlanSettings`: rate, selector, content, max_fit_kl, ...

        Raises ValueError for a model without `FreezableHeads` or with sharded parameters, for a device on which static
        heads cannot be mixed, for settings out of range, and for selectors that need more than queries and keys.
        """
        self.layers = [module for module in model.modules() if isinstance(module, FreezableHeads)]
        if not self.layers:
            raise ValueError("the model has no FreezableHeads: put one in each attention layer (docs/own_loop.md)")
        if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
            raise ValueError(
                "the parameters are sharded, for example by FSDP: wrap the model in DistributedDataParallel instead, "
                "or use saf_titan.train"
            )
        # asked here, because heads are mixed only after the freeze, which may be days later
        for device_type in sorted({parameter.device.type for parameter in model.parameters()}):
            if (obstacle := device_obstacle("auto", device_type)) is not None:
                raise ValueError(f"static mixing {obstacle}; install it, or train without a freeze")
        self._settings = PlanSettings(**settings)
        selector = SELECTORS[self._settings.selector]
        if selector.measure is not None or selector.watches_gradients:
            raise ValueError(
                f'selector = "{selector.name}" works only in runs of saf_titan.train; see docs/saf.md for the others'
            )
        self._model, self._optimizer = model, optimizer
        self.calibration: Calibration | None = None
        """Statistics of the latest freeze; `python -m saf_titan.saf explain` reads them from a file."""
        guard_heads(model, self.layers)

    @property
    def plan(self) -> StaticPlan | None:
        """The plan of all static heads of the model; None while every head is live."""
        parts = [layer.plan for layer in self.layers if layer.plan is not None]
        if not parts:
            return None
        newest = max(parts, key=lambda part: part.step)
        return dataclasses.replace(newest, heads=tuple(head for part in parts for head in part.heads))

    def freeze(
        self,
        batches: Sequence[Any],
        *,
        step: int = 0,
        rate: float | None = None,
        forward: Callable[[Any], object] | None = None,
    ) -> StaticPlan:
        """Choose heads, fit their patterns, make them static, and return the plan.

        Weights that static heads no longer use become zero, with their optimizer state. Call `freeze` between
        `optimizer.zero_grad()` and the next forward, on every rank, each with its own sequences but the same number of
        them. Held-out sequences of the full training length are best. Nothing is changed if it raises.

        Args:
            batches: inputs of `forward`, for example token ids [B, T]; at least two sequences in total.
            step: recorded in the plan.
            rate: share of all heads, in [0, 1], that are static afterwards; None for the rate of the settings. A higher
                rate than before adds heads.
            forward: runs one batch through the model; by default it calls the unwrapped model with the batch.

        Raises ValueError where `make_plan` does, and if a parameter has a gradient; RuntimeError if the ranks decided
        on different plans.
        """
        if any(parameter.grad is not None for parameter in self._model.parameters()):
            raise ValueError("there are gradients: call optimizer.zero_grad(set_to_none=True) before a freeze")
        forward = forward or _unwrapped(self._model)
        was_training = self._model.training
        self._model.eval()
        try:
            calibration = calibrate(self.layers, batches, forward).of_model(self._identity())
        finally:
            self._model.train(was_training)
        settings = self._settings if rate is None else dataclasses.replace(self._settings, rate=rate)
        plan = make_plan(calibration, settings, step=step, base_plan=self.plan)
        require_agreement(plan)
        by_layer = plan.layers()
        for number, layer in enumerate(self.layers):
            heads = by_layer.get(number, ())
            if not heads:
                continue
            layer.install(dataclasses.replace(plan, heads=tuple(heads)))
            # calibration does not run a layer without live heads, but the weights of such a layer are zero already
            for parameter, rows in layer.unused_rows() if layer.projections else ():
                self._zero(parameter, rows)
        for layer in self.layers:
            layer.projections = ()
        self.calibration = calibration
        return plan

    def _identity(self) -> dict[str, Any]:
        """What tells the model from others, for the files of a freeze; known once a forward was captured."""
        one = self.layers[0]
        sizes = {"num_layers": len(self.layers), "num_heads": one.num_heads, "num_kv_heads": one.num_kv_heads}
        weights = (projection.weight for layer in self.layers for projection in layer.projections)
        return {**sizes, WEIGHTS: weights_digest("projections", weights)}

    def __str__(self) -> str:
        """Return the number and the names of the static heads, for a log line."""
        plan = self.plan
        total = sum(layer.num_heads for layer in self.layers)
        names = [head_name(*head.slot) for head in plan.heads] if plan is not None else []
        return f"{len(names)} of {total} heads static" + (f": {', '.join(names)}" if names else "")

    @torch.no_grad()
    def _zero(self, parameter: Tensor, rows: Tensor) -> None:
        """Zero rows of a parameter and of its moments; the optimizer then keeps them at zero."""
        for tensor in (parameter, *moments(parameter, self._optimizer.state)):
            tensor.index_fill_(0, rows.to(tensor.device), 0.0)


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside the wrappers of DistributedDataParallel and torch.compile."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner
