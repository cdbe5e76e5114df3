"""Every parameter in exactly one circuit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saf_titan.circuits.groups import parameter_groups

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
    groups = {group.name: group.names for group in parameter_groups(names(), qk_layers=(1, 2))}
    assert {name.split(".")[1] for name in groups["qk"]} == {"1", "2"}
    assert "layers.0.attention.qkv_linear.wq.weight" in groups["other"]


def test_fused_projection_is_refused_with_both_remedies() -> None:
    fused = [("layers.0.attention.qkv_linear.wqkv.weight", MATRIX)]
    with pytest.raises(ValueError, match=r"wqkv.*fuse_qkv=False.*qk_lr_ratio = 1"):
        parameter_groups(fused)
    assert [group.name for group in parameter_groups(fused, split_qk=False)] == ["other"]
