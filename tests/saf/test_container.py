"""The file format: whatever stands in a file, the answer is one error that names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from saf_titan.saf.container import pack, read_file, unpack

GOOD = {"kind": "example", "version": 1, "digest": "0", "header": {}}


@pytest.mark.parametrize(
    "envelope",
    ["", "x", "null", "[]", "{}", *(json.dumps({k: v for k, v in GOOD.items() if k != name}) for name in GOOD)],
)
def test_a_broken_envelope_is_an_unreadable_file(envelope: str) -> None:
    data = safetensors.torch.save({"x": torch.zeros(1)}, metadata={"saf_titan": envelope})
    with pytest.raises(ValueError, match="some file is not a readable example"):
        unpack(data, "example", 1, source="some file")


@pytest.mark.parametrize("value", [None, 3, [], {"a": []}, "text"])
@pytest.mark.parametrize("name", GOOD)
def test_a_wrong_value_in_the_envelope_is_one_error(name: str, value: object) -> None:
    metadata = {"saf_titan": json.dumps({**GOOD, name: value})}
    with pytest.raises(ValueError, match=r"^some file "):
        unpack(safetensors.torch.save({"x": torch.zeros(1)}, metadata=metadata), "example", 1, source="some file")


def test_round_trip() -> None:
    header, tensors = unpack(pack("example", 1, {"a": [1, "b"]}, {"x": torch.arange(3)}), "example", 1)
    assert header == {"a": [1, "b"]}
    assert torch.equal(tensors["x"], torch.arange(3))


def test_a_folder_and_nothing_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder: give the file of a example"):
        read_file(tmp_path, "example")
    with pytest.raises(ValueError, match="none does not exist"):
        read_file(tmp_path / "none", "example")
