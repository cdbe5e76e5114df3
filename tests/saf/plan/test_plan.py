"""The plan as data: bytes and back, digest, and what is refused."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from saf_titan.saf.calibrate.calibration import CalibrationRecord
from saf_titan.saf.container import pack
from saf_titan.saf.fit.pattern import CompactPattern
from saf_titan.saf.plan.plan import SkippedHead, StaticHead, StaticPlan

T = 6


def head(layer: int, number: int, step: int = 50) -> StaticHead:
    alpha = torch.randn(T, generator=torch.Generator().manual_seed(10 * layer + number))
    pattern = CompactPattern(alpha, -alpha)
    return StaticHead(layer, number, pattern, score=0.1 * layer, fit_kl=0.01, rank=number, step=step)


def with_vectors(head: StaticHead, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> StaticHead:
    return dataclasses.replace(head, pattern=CompactPattern(*change(*head.pattern.vectors)))


def plan(*heads: StaticHead, T_fit: int = T) -> StaticPlan:
    return StaticPlan(
        heads=heads,
        skipped=(
            SkippedHead(0, 3, 0.2, 0.4, "fit KL 0.400 nat > 0.2"),
            SkippedHead(1, 0, 0.3, None, "layer 1 is full"),
        ),
        step=50,
        selector="variance",
        content="mean",
        rate=0.25,
        T_fit=T_fit,
        record=CalibrationRecord(4, T, (0, 6, 12, 18), 7, "val"),
    )


EXAMPLE = plan(head(0, 1), head(0, 2), head(2, 0))


def test_round_trip() -> None:
    again = StaticPlan.from_bytes(EXAMPLE.to_bytes())
    assert again.to_bytes() == EXAMPLE.to_bytes()
    assert again.digest == EXAMPLE.digest
    for field in dataclasses.fields(StaticPlan):
        if field.name != "heads":
            assert getattr(again, field.name) == getattr(EXAMPLE, field.name)
    for ours, theirs in zip(again.heads, EXAMPLE.heads, strict=True):
        assert (ours.layer, ours.head, ours.score, ours.rank, ours.step) == (
            theirs.layer, theirs.head, theirs.score, theirs.rank, theirs.step,
        )  # fmt: skip
        assert torch.equal(ours.pattern.vectors[0], theirs.pattern.vectors[0])
        assert torch.equal(ours.pattern.vectors[1], theirs.pattern.vectors[1])


def test_a_plan_without_heads() -> None:
    empty = plan()
    assert StaticPlan.from_bytes(empty.to_bytes()).heads == ()
    assert empty.layers() == {}


def test_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "plan.safetensors"
    EXAMPLE.save(path)
    assert StaticPlan.load(path).digest == EXAMPLE.digest
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"plan\.safetensors is not a readable safetensors file"):
        StaticPlan.load(path)


def test_layers() -> None:
    layers = EXAMPLE.layers()
    assert list(layers) == [0, 2]
    assert [head.slot for head in layers[0]] == [(0, 1), (0, 2)]
    alpha_T, rho_T = layers[0][1].pattern.vectors
    assert torch.equal(alpha_T, head(0, 2).pattern.vectors[0])
    assert torch.equal(rho_T, -alpha_T)


def test_every_part_of_the_content_is_in_the_digest() -> None:
    changed_pattern = with_vectors(head(0, 1), lambda alpha_T, rho_T: (alpha_T + 1e-6, rho_T))
    others = [
        plan(head(0, 1), head(0, 2)),
        plan(changed_pattern, head(0, 2), head(2, 0)),
        dataclasses.replace(EXAMPLE, step=51),
        dataclasses.replace(EXAMPLE, skipped=()),
        dataclasses.replace(EXAMPLE, record=CalibrationRecord(4, T, (0, 6, 12, 18), 8, "val")),
    ]
    digests = {EXAMPLE.digest, *(other.digest for other in others)}
    assert len(digests) == len(others) + 1


def test_extension() -> None:
    later = dataclasses.replace(plan(head(0, 0, step=90), head(3, 1, step=90)), step=90, rate=0.5, skipped=())
    both = EXAMPLE.extended_by(later)
    assert [(h.layer, h.head, h.step) for h in both.heads] == [
        (0, 0, 90), (0, 1, 50), (0, 2, 50), (2, 0, 50), (3, 1, 90),
    ]  # fmt: skip
    assert (both.step, both.rate, both.skipped) == (90, 0.5, ())
    with pytest.raises(ValueError, match="in ascending order, each once"):
        EXAMPLE.extended_by(plan(head(2, 0)))
    with pytest.raises(ValueError, match="lengths 6 and 5 cannot be joined"):
        EXAMPLE.extended_by(plan(T_fit=5))


def test_damaged_bytes_are_refused() -> None:
    data = EXAMPLE.to_bytes()
    flipped = bytearray(data)
    flipped[-1] ^= 1
    for damaged in (b"", data[:4], data[:100], data[:-1], b"x" * 64):
        with pytest.raises(ValueError, match="the data is not a readable safetensors file"):
            StaticPlan.from_bytes(damaged)
    with pytest.raises(ValueError, match=f"does not match its digest {EXAMPLE.digest[:12]}"):
        StaticPlan.from_bytes(bytes(flipped))
    edited = data.replace(b"variance", b"variants")
    assert edited != data
    with pytest.raises(ValueError, match="does not match its digest"):
        StaticPlan.from_bytes(edited)


def test_other_files_are_refused() -> None:
    with pytest.raises(ValueError, match="but not one of saf_titan's: a static_plan is needed"):
        StaticPlan.from_bytes(safetensors.torch.save({"w": torch.zeros(2)}))
    with pytest.raises(ValueError, match="holds a calibration, but a static_plan is needed"):
        StaticPlan.from_bytes(pack("calibration", 1, {}, {}))
    with pytest.raises(ValueError, match="version 99, this saf_titan reads version 1"):
        StaticPlan.from_bytes(pack("static_plan", 99, {}, {}))


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="in ascending order, each once"):
        plan(head(1, 0), head(0, 0))
    with pytest.raises(ValueError, match="L0H1, content mean: alpha must be finite float32 of length T_fit = 7"):
        plan(head(0, 1), T_fit=7)
    with pytest.raises(ValueError, match="L0H1, content mean: rho must be finite"):
        plan(with_vectors(head(0, 1), lambda alpha_T, rho_T: (alpha_T, torch.full((T,), torch.nan))))


def test_the_content_says_what_the_patterns_are() -> None:
    with pytest.raises(
        ValueError, match="L0H1, content prune: the pattern must be a removed head, got a pair of vectors"
    ):
        dataclasses.replace(EXAMPLE, content="prune")


def test_bytes_depend_on_the_content_alone() -> None:
    envelope = json.loads(safetensors_metadata(EXAMPLE.to_bytes())["saf_titan"])
    assert envelope["digest"] == EXAMPLE.digest
    assert list(envelope) == sorted(envelope)


def safetensors_metadata(data: bytes) -> dict[str, str]:
    size = int.from_bytes(data[:8], "little")
    metadata: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    return metadata
