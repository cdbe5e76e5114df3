"""Every parameter in exactly one circuit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.circuits.groups import parameter_groups
from saf_titan.config.circuit_groups import CircuitGroup

MATRIX, VECTOR = torch.zeros(4, 4), torch.zeros(4)


def names(num_layers: int = 3) -> list[tuple[str, Tensor]]:
    parameters = [("tok_embeddings.weight", MATRIX), ("norm.weight", VECTOR)]
    for layer in range(num_layers):
        prefix = f"layers.{layer}"
        parameters += [
            (f"{prefix}.attention.qkv_linear.wq.weight", MATRIX),
            (f"{prefix}.attention.qkv_linear.wk.weight", MATRIX),
            (f"{prefix}.attention.qkv_linear.wv.weight", MATRIX),
            (f"{prefix}.attention.wo.weight", MATRIX),
            (f"{prefix}.feed_forward.w1.weight", MATRIX),
            (f"{prefix}.attention_norm.weight", VECTOR),
        ]
    return parameters


def test_groups_are_disjoint_and_complete() -> None:
    groups = {group.name: group for group in parameter_groups(names())}
    assert list(groups) == ["qk", "ov", "other", "no_decay"]
    assert all(name.split(".")[-2] in ("wq", "wk") for name in groups["qk"].names)
    assert all(name.split(".")[-2] in ("wv", "wo") for name in groups["ov"].names)
    assert all("norm" in name for name in groups["no_decay"].names)
    assigned = [name for group in groups.values() for name in group.names]
    assert sorted(assigned) == sorted(name for name, _ in names())
    assert groups["qk"].num_elements == 3 * 2 * 16


def test_layers_outside_the_range_are_not_in_the_qk_group() -> None:
    rule = CircuitGroup(match="qk", layers=(1, 2), factor=2.0)
    groups = {group.name: group for group in parameter_groups(names(), [rule])}
    assert list(groups) == ["qk[1-2]", "qk", "ov", "other", "no_decay"]
    assert {name.split(".")[1] for name in groups["qk[1-2]"].names} == {"1", "2"}
    assert groups["qk[1-2]"].rule == rule
    assert {name.split(".")[1] for name in groups["qk"].names} == {"0"}
    assert groups["qk"].rule is None


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("ov", {"wv", "wo"}),
        ("mlp", {"w1"}),
        ("norm", {"norm", "attention_norm"}),
        ("embedding", {"tok_embeddings"}),
        (r"layers\.[02]\..*w[1q]\.", {"w1", "wq"}),
    ],
)
def test_every_circuit_and_any_pattern_can_have_a_factor(match: str, expected: set[str]) -> None:
    groups = parameter_groups(names(), [CircuitGroup(match=match, factor=3.0)])
    mine = [group for group in groups if group.rule is not None]
    assert {name.split(".")[-2] for group in mine for name in group.names} == expected
    assert all(group.decays == (match != "norm") for group in mine)
    assigned = [name for group in groups for name in group.names]
    assert sorted(assigned) == sorted(name for name, _ in names())


def test_a_pattern_over_matrices_and_vectors_makes_two_groups() -> None:
    groups = {
        group.name: group for group in parameter_groups(names(), [CircuitGroup(match=r"layers\.1\.", factor=3.0)])
    }
    assert groups[r"layers\.1\."].decays
    assert not groups[r"layers\.1\./no_decay"].decays
    assert groups[r"layers\.1\./no_decay"].names == ("layers.1.attention_norm.weight",)


def test_rules_that_overlap_or_match_nothing_are_refused() -> None:
    both = [CircuitGroup(match="qk", layers=(0, 1)), CircuitGroup(match="qk", layers=(1, 2))]
    with pytest.raises(ValueError, match=r"qk\[0-1\] and qk\[1-2\] both match layers.1.attention.qkv_linear.wq.weight"):
        parameter_groups(names(), both)
    with pytest.raises(ValueError, match=r"rotary matches no parameter of the model"):
        parameter_groups(names(), [CircuitGroup(match="rotary")])


def test_fused_projection_is_refused_with_both_remedies() -> None:
    fused = [("layers.0.attention.qkv_linear.wqkv.weight", MATRIX)]
    for circuit in ("qk", "ov"):
        with pytest.raises(ValueError, match=rf"wqkv.*{circuit} circuit.*fuse_qkv = false.*qk_lr_ratio"):
            parameter_groups(fused, [CircuitGroup(match=circuit)])
    assert [group.name for group in parameter_groups(fused)] == ["other"]
