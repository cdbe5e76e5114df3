"""Assign every parameter to a group of the optimizer.

Every trainable parameter is in exactly one group. A rule of the configuration gets the parameters that it matches. All
others belong to the groups of circuits without a factor. Groups are decided on canonical names, with the segments of
wrappers removed, so that activation checkpointing and compile do not change them.

==========  =====================================================  ==============
group       parameters                                             weight decay
==========  =====================================================  ==============
a rule      what the rule matches                                  matrices only
qk          ``wq``, ``wk``                                         yes
ov          ``wv``, ``wo``                                         yes
other       every other matrix, embeddings included                yes
no_decay    vectors (norms, biases)                                no
==========  =====================================================  ==============
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from saf_titan.config.circuit_groups import CIRCUITS, CircuitGroup

QK, OV, OTHER, NO_DECAY = "qk", "ov", "other", "no_decay"

_ATTENTION = re.compile(r"(?:^|\.)layers\.\d+\.attention\.(?:qkv_linear\.)?(?P<matrix>wqkv|w[qkvo])\.")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_FEED_FORWARD = re.compile(r"(?:^|\.)layers\.\d+\.feed_forward\.")
_NORM = re.compile(r"norm\.(?:weight|bias)$")
_EMBEDDING = re.compile(r"(?:^|\.)(?:tok_embeddings|pos_embeddings|lm_head)\.")


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that share a learning rate and a weight decay."""

    name: str
    names: tuple[str, ...]
    """Canonical names, in model order."""
    num_elements: int
    decays: bool
    """Whether the group has weight decay."""
    rule: CircuitGroup | None = None
    """The rule whose factor multiplies the group's learning rate."""


def parameter_groups(
    parameters: Iterable[tuple[str, Tensor]], rules: Sequence[CircuitGroup] = ()
) -> list[ParameterGroup]:
    """Assign named parameters to the groups of rules, then to qk, ov, other, no_decay; leave out empty groups.

    Args:
        parameters: (canonical name, tensor) of every trainable parameter of the whole model.

    Raises ValueError for a rule that matches no parameter, two rules that match the same one, and a rule for a circuit
    that a fused ``wqkv`` holds together with another.
    """
    # (name, decays) -> rule and members
    groups: dict[tuple[str, bool], tuple[CircuitGroup | None, list[tuple[str, Tensor]]]] = {}
    for rule in rules:
        for decays in (True, False):
            groups[rule.name if decays else f"{rule.name}/no_decay", decays] = rule, []
    for circuit in (QK, OV, OTHER, NO_DECAY):
        groups.setdefault((circuit, circuit != NO_DECAY), (None, []))
    used = set()
    example = ""
    for name, parameter in parameters:
        example = example or name
        rule_here = _rule_of(name, rules)
        if rule_here is None:
            circuit = _circuit(name, parameter)
            groups.setdefault((circuit, circuit != NO_DECAY), (None, []))[1].append((name, parameter))
            continue
        used.add(rule_here.name)
        decays = parameter.ndim >= 2
        groups[rule_here.name if decays else f"{rule_here.name}/no_decay", decays][1].append((name, parameter))
    if missed := [rule.name for rule in rules if rule.name not in used]:
        raise ValueError(
            f"circuits.group: {', '.join(missed)} matches no parameter of the model: give one of "
            f"{', '.join(CIRCUITS)}, or a pattern that is found in a name such as {example!r}"
        )
    return [
        ParameterGroup(
            name=name,
            names=tuple(member for member, _ in members),
            num_elements=sum(parameter.numel() for _, parameter in members),
            decays=decays,
            rule=rule,
        )
        for (name, decays), (rule, members) in groups.items()
        if members
    ]


def _rule_of(name: str, rules: Sequence[CircuitGroup]) -> CircuitGroup | None:
    matching = [rule for rule in rules if _matches(rule, name)]
    if len(matching) > 1:
        raise ValueError(
            f"circuits.group: {matching[0].name} and {matching[1].name} both match {name}; a parameter has one "
            f"learning rate, so make their patterns or layers disjoint"
        )
    return matching[0] if matching else None


def _matches(rule: CircuitGroup, name: str) -> bool:
    if rule.layers:
        layer = _LAYER.search(name)
        if layer is None or not rule.layers[0] <= int(layer[1]) <= rule.layers[1]:
            return False
    attention = _ATTENTION.search(name)
    matrix = attention["matrix"] if attention else ""
    if rule.match in (QK, OV) and matrix == "wqkv":
        raise ValueError(
            f"circuits: parameter {name!r} fuses queries, keys and values, so the {rule.match} circuit cannot have its "
            f"own learning rate; set model.fuse_qkv = false, or take the rule (or circuits.qk_lr_ratio) away"
        )
    match rule.match:
        case "qk":
            return matrix in ("wq", "wk")
        case "ov":
            return matrix in ("wv", "wo")
        case "mlp":
            return _FEED_FORWARD.search(name) is not None
        case "norm":
            return _NORM.search(name) is not None
        case "embedding":
            return _EMBEDDING.search(name) is not None
    assert rule.match not in CIRCUITS
    return re.search(rule.match, name) is not None


def _circuit(name: str, parameter: Tensor) -> str:
    if parameter.ndim < 2:
        return NO_DECAY
    attention = _ATTENTION.search(name)
    if attention is None or attention["matrix"] == "wqkv":
        return OTHER
    return QK if attention["matrix"] in ("wq", "wk") else OV
