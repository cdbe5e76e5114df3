"""torchtitan's optimizer and learning-rate containers with one parameter group per circuit."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torchtitan.components.checkpointer.utils import canonical_fqn
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.tools.logging import logger

from saf_titan.circuits.groups import ParameterGroup, parameter_groups
from saf_titan.circuits.schedule import Schedule, factor
from saf_titan.config.circuit_groups import CircuitGroup


class CircuitOptimizers(OptimizersContainer):
    """AdamW or SGD with the groups of :mod:`saf_titan.circuits.groups`.

    After a checkpoint is loaded, hyper-parameters are still those of the configuration; only the state is loaded.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        name: str = "AdamW"
        """``AdamW`` or ``SGD``."""

        hyper_parameters: dict[str, Any] = field(default_factory=dict)
        """Keyword arguments of the optimizer: lr, weight_decay, and betas and eps or momentum."""

        rules: tuple[CircuitGroup, ...] = ()
        """Factors on the learning rates of circuits."""

    groups: list[ParameterGroup]

    def __init__(self, config: Config, *, model_parts: list[nn.Module]) -> None:
        assert not config.param_groups, "groups follow from the circuits, param_groups must stay empty"
        raw_names = {
            canonical_fqn(name): name
            for part in model_parts
            for name, parameter in part.named_parameters()
            if parameter.requires_grad
        }
        parameters = [
            (canonical_fqn(name), parameter)
            for part in model_parts
            for name, parameter in part.named_parameters()
            if parameter.requires_grad
        ]
        self.groups = parameter_groups(parameters, config.rules)
        titan_config = OptimizersContainer.Config(
            param_groups=[self._group_config(config, group, raw_names) for group in self.groups],
            implementation=config.implementation,
        )
        super().__init__(titan_config, model_parts=model_parts)
        assert len(self.optimizers) == 1, "one optimizer type and one model part"
        self._hyper_parameters = [
            {key: group[key] for key in self._config_keys(config)} for group in self.param_group_list
        ]

    @property
    def param_group_list(self) -> list[dict[str, Any]]:
        """The live parameter groups, aligned with ``groups``."""
        return self.optimizers[0].param_groups

    @staticmethod
    def _config_keys(config: Config) -> list[str]:
        return ["weight_decay", *(key for key in config.hyper_parameters if key not in ("lr", "weight_decay"))]

    @staticmethod
    def _group_config(config: Config, group: ParameterGroup, raw_names: dict[str, str]) -> ParamGroupConfig:
        kwargs = dict(config.hyper_parameters)
        if not group.decays:
            kwargs["weight_decay"] = 0.0
        alternatives = "|".join(re.escape(raw_names[name]) for name in group.names)
        return ParamGroupConfig(pattern=f"^(?:{alternatives})$", optimizer_name=config.name, optimizer_kwargs=kwargs)

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., Optimizer]:
        if name == "SGD":
            return torch.optim.SGD
        return OptimizersContainer._resolve_optimizer_factory(name)

    def _log_optimizer(self, optimizer: Optimizer, part_idx: int, patterns: list[str]) -> None:
        for line in group_table(self.groups, optimizer.param_groups):
            logger.info(line)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for group, live, configured in zip(self.groups, self.param_group_list, self._hyper_parameters, strict=True):
            # The decay of a group with a factor changes with the factor, so the saved value cannot be compared.
            keys = [key for key in configured if not (group.rule and key == "weight_decay")]
            changed = {key: live[key] for key in keys if _differ(live[key], configured[key])}
            for key, value in changed.items():
                logger.warning(
                    f"optimizer: {key} of group {group.name!r} is {configured[key]} in the config and {value} in the "
                    f"checkpoint; the config's value is used"
                )
            live.update(configured)


class CircuitSchedules(LRSchedulersContainer):
    """One warm-up and decay for all groups, times the factor of a group's rule.

    The factor multiplies the group's base rate at every step. AdamW decays a weight by lr * weight_decay; unless
    ``scale_weight_decay`` is set, the decay per step is kept independent of the factor by dividing the group's
    ``weight_decay`` by it.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):
        scale_weight_decay: bool = False

        def build(self, *, optimizers: CircuitOptimizers, training_steps: int) -> CircuitSchedules:
            stock = LRSchedulersContainer.Config.build(self, optimizers=optimizers, training_steps=training_steps)
            factor = stock.schedulers[0].lr_lambdas[0]

            def base_factor(step: float) -> float:
                # a run of a fixed time asks for steps between two whole steps, where torchtitan's factor exceeds 1 at
                # the end of the warm-up
                return min(factor(step), 1.0)

            return CircuitSchedules(optimizers, base_factor, scale_weight_decay=self.scale_weight_decay)

    def __init__(self, optimizers: CircuitOptimizers, base_factor: Schedule, *, scale_weight_decay: bool) -> None:
        self._factors = [factor(group.rule) for group in optimizers.groups]
        # torchtitan passes one lambda for all groups; LambdaLR also takes one for each group
        super().__init__(optimizers, [_product(base_factor, group_factor) for group_factor in self._factors])
        self._optimizers = optimizers
        self._decay = [group["weight_decay"] for group in optimizers.param_group_list]
        self._keeps_decay = not scale_weight_decay
        self.apply()

    def apply(self) -> None:
        """Write this step's rates and decays into the parameter groups (after a load they are the checkpoint's)."""
        scheduler = self.schedulers[0]
        for index, group in enumerate(self._optimizers.groups):
            live = self._optimizers.param_group_list[index]
            live["lr"] = scheduler.get_last_lr()[index]
            if group.rule is not None and self._keeps_decay:
                live["weight_decay"] = self._decay[index] / self._factors[index](scheduler.last_epoch)

    def set_progress(self, step: float) -> None:
        """Set the rates for ``step`` finished steps; ``step`` may be fractional."""
        self.load_state_dict({"last_epoch": step})

    def step(self) -> None:
        super().step()
        self.apply()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # torchtitan calls get_lr(), of which torch warns; here the rates depend on last_epoch and the base rates only
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            super().load_state_dict(state_dict)
        self.apply()

    def get_metrics(self) -> dict[str, float]:
        """Learning rates keyed ``lr/<circuit>``."""
        rates = self.schedulers[0].get_last_lr()
        return {f"lr/{group.name}": float(rate) for group, rate in zip(self._optimizers.groups, rates, strict=True)}


def group_table(groups: list[ParameterGroup], live_groups: list[dict[str, Any]]) -> list[str]:
    """Lines of a table: group, tensors, parameters, learning rate, weight decay, an example name."""
    header = f"{'group':<10} {'tensors':>8} {'parameters':>14} {'lr':>10} {'decay':>7}  example"
    rows = [
        f"{group.name:<10} {len(group.names):>8} {group.num_elements:>14,} {live['lr']:>10.3g} "
        f"{live['weight_decay']:>7.3g}  {group.names[0]}"
        for group, live in zip(groups, live_groups, strict=True)
    ]
    return [header, *rows]


def _product(base_factor: Schedule, group_factor: Schedule) -> Schedule:
    return lambda step: base_factor(step) * group_factor(step)


def _differ(a: Any, b: Any) -> bool:
    return tuple(a) != tuple(b) if isinstance(a, list | tuple) else a != b
