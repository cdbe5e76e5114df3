"""Plans applied to checkpoints on disk, and compact exports."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from saf_titan.saf.__main__ import main
from saf_titan.saf.install.checkpoint import read_checkpoint, write_checkpoint
from saf_titan.saf.plan.plan import StaticPlan
from tests.saf.install.test_rows import PLAN, PRUNED, C, D, H, weights
from tests.saf.plan.test_plan import T, head, plan

EMBEDDING = torch.arange(7 * C).view(7, C).float()


def checkpoint() -> dict[str, Any]:
    """The layout of a trainer's checkpoint: weights at the top, the tied ones twice, sections beside them."""
    moments = {f"state.{name}.exp_avg": torch.ones_like(weight) for name, weight in weights().items()}
    return {
        "tok_embeddings.weight": EMBEDDING,
        **weights(),
        "lm_head.weight": EMBEDDING,
        "optimizer": {**moments, "state.step": torch.tensor(5.0)},
        "train_state": {"step": 5, "seen": 80},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(checkpoint(), tmp_path / "before")
    PLAN.save(tmp_path / "plan")
    return tmp_path


def test_round_trip(folder: Path) -> None:
    again = read_checkpoint(folder / "before")
    assert again.keys() == checkpoint().keys()
    assert again["train_state"] == {"step": 5, "seen": 80}
    for name, weight in weights().items():
        assert torch.equal(again[name], weight)
    assert read_checkpoint(folder / "before", prefix="train_state.step") == {"train_state": {"step": 5}}


def test_apply_is_what_a_freeze_does(folder: Path) -> None:
    assert (
        main(
            [
                "apply",
                str(folder / "before"),
                str(folder / "plan"),
                "--num-heads",
                str(H),
                "--out",
                str(folder / "after"),
            ]
        )
        == 0
    )
    after = read_checkpoint(folder / "after")
    assert StaticPlan.from_bytes(after["train_state"]["saf_plan"]).digest == PLAN.digest
    query = "layers.0.attention.qkv_linear.wq.weight"
    assert after[query][D : 2 * D].abs().sum() == 0
    assert torch.equal(after[query][:D], weights()[query][:D])
    assert after["optimizer"][f"state.{query}.exp_avg"].sum() == (H - 1) * D * C
    assert torch.equal(
        after["layers.0.attention.qkv_linear.wv.weight"], weights()["layers.0.attention.qkv_linear.wv.weight"]
    )
    assert after["train_state"]["seen"] == 80


def test_export_and_restore(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heads = ["--num-heads", str(H)]
    main(["apply", str(folder / "before"), str(folder / "plan"), *heads, "--out", str(folder / "after")])
    capsys.readouterr()
    assert main(["export", str(folder / "after"), *heads, "--out", str(folder / "compact")]) == 0
    # three static heads, queries and keys
    total = EMBEDDING.numel() + sum(weight.numel() for weight in weights().values())
    assert f"{total - 3 * 2 * D * C:,} of {total:,} parameters" in capsys.readouterr().out
    compact = safetensors.torch.load_file(folder / "compact")
    assert "tok_embeddings.weight" in compact
    assert "lm_head.weight" not in compact
    assert main(["restore", str(folder / "compact"), "--out", str(folder / "full")]) == 0
    full, after = safetensors.torch.load_file(folder / "full"), read_checkpoint(folder / "after")
    assert bytes(full.pop("saf_plan").numpy()) == after["train_state"]["saf_plan"]
    assert full.keys() == {name for name, value in checkpoint().items() if isinstance(value, torch.Tensor)}
    assert all(same_bytes(full[name], after[name]) for name in full)
    # and back: the restored file is exported to the same bytes
    assert main(["export", str(folder / "full"), "--out", str(folder / "again")]) == 0
    assert (folder / "again").read_bytes() == (folder / "compact").read_bytes()
    assert main(["export", str(folder / "full"), "--num-heads", "2", "--out", str(folder / "wrong")]) == 2
    assert "of a model with 4 query heads" in capsys.readouterr().err


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the last bit; 0.0 and -0.0 are not."""
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


def test_a_pruned_head_has_no_part_in_an_applied_checkpoint(folder: Path) -> None:
    PRUNED.save(folder / "pruned")
    arguments = [str(folder / "before"), str(folder / "pruned"), "--num-heads", str(H)]
    assert main(["apply", *arguments, "--out", str(folder / "after")]) == 0
    after = read_checkpoint(folder / "after")
    output = "layers.2.attention.wo.weight"
    assert after[output][:, : 2 * D].abs().sum() == 0
    assert after["layers.2.attention.qkv_linear.wv.weight"][: 2 * D].abs().sum() == 0
    assert after["optimizer"][f"state.{output}.exp_avg"].sum() == (H - 2) * D * C
    assert main(["export", str(folder / "after"), "--num-heads", str(H), "--out", str(folder / "compact")]) == 0
    assert safetensors.torch.load_file(folder / "compact")[output].shape == (C, (H - 2) * D)
    assert main(["restore", str(folder / "compact"), "--out", str(folder / "full")]) == 0
    full = safetensors.torch.load_file(folder / "full")
    assert bytes(full.pop("saf_plan").numpy()) == after["train_state"]["saf_plan"]
    assert all(same_bytes(full[name], after[name]) for name in full)


def test_mistakes_leave_nothing_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        return capsys.readouterr().err

    before, plan, after = (str(folder / name) for name in ("before", "plan", "after"))
    assert "none does not exist: give the folder of a checkpoint" in fails(
        "apply", str(folder / "none"), plan, "--num-heads", "4", "--out", after
    )
    assert "cannot be those of 5 query heads" in fails("apply", before, plan, "--num-heads", "5", "--out", after)
    assert "has a head 1, but the model has 1" in fails("apply", before, plan, "--num-heads", "1", "--out", after)
    assert "exists already" in fails("apply", before, plan, "--num-heads", "4", "--out", before)
    assert "has no plan" in fails("export", before, "--num-heads", "4", "--out", after)
    assert "holds a static_plan, but a compact_model is needed" in fails("restore", plan, "--out", after)
    assert not Path(after).exists()
    assert main(["apply", before, plan, "--num-heads", "4", "--out", after]) == 0
    assert "has a plan already" in fails("apply", after, plan, "--num-heads", "4", "--out", str(folder / "twice"))


def own_checkpoint(*, num_heads: int = H, seq_len: int = T) -> dict[str, Any]:
    """As this project's trainer writes it: the model is described."""
    state = checkpoint()
    state["train_state"]["saf_model"] = json.dumps({"num_heads": num_heads, "num_layers": 3})
    return state | {"dataloader": {"seq_len": seq_len}}


def test_own_checkpoints_tell_their_number_of_heads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(own_checkpoint(), folder / "own")
    assert main(["apply", str(folder / "own"), str(folder / "plan"), "--out", str(folder / "after")]) == 0
    assert main(["export", str(folder / "after"), "--out", str(folder / "compact")]) == 0
    # 2 heads of twice the width would fit the weights as well
    capsys.readouterr()
    for words in (["apply", str(folder / "own"), str(folder / "plan")], ["export", str(folder / "after")]):
        assert main([*words, "--num-heads", "2", "--out", str(folder / "wrong")]) == 2
        assert "--num-heads 2, but the checkpoint is of a model with 4 query heads" in capsys.readouterr().err
    assert main(["apply", str(folder / "before"), str(folder / "plan"), "--out", str(folder / "wrong")]) == 2
    assert "does not store its number of query heads" in capsys.readouterr().err
    # of a stock checkpoint: the rows that would go are not those that are zero
    main(["apply", str(folder / "before"), str(folder / "plan"), "--num-heads", "4", "--out", str(folder / "stock")])
    assert main(["export", str(folder / "stock"), "--num-heads", "2", "--out", str(folder / "wrong")]) == 2
    assert "not zero where the plan's heads should have been" in capsys.readouterr().err
    assert not (folder / "wrong").exists()


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        (plan(head(3, 0)), "static heads in layer 3, but the model has 3 layers"),
        (plan(head(0, H)), f"has a head {H}, but the model has {H}"),
        (
            dataclasses.replace(PLAN, record=dataclasses.replace(PLAN.record, heads=(3, 2))),
            "of a model with 3 layers of 2 heads, but the checkpoint's model has 3 of 4",
        ),
    ],
    ids=["layers", "head", "heads"],
)
def test_plans_of_other_models_are_refused(
    folder: Path, foreign: StaticPlan, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign.save(folder / "foreign")
    write_checkpoint(own_checkpoint(), folder / "own")
    assert main(["apply", str(folder / "own"), str(folder / "foreign"), "--out", str(folder / "after")]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "after").exists()


def test_plans_of_shorter_sequences_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(own_checkpoint(seq_len=T + 1), folder / "longer")
    assert main(["apply", str(folder / "longer"), str(folder / "plan"), "--out", str(folder / "after")]) == 2
    assert f"fitted to sequences of {T} tokens, but the checkpoint was trained on {T + 1}" in capsys.readouterr().err
    assert not (folder / "after").exists()
