"""The log says which operator mixes the heads of each layer, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saf_titan.config import ConfigError, load_config
from saf_titan.ops.static_mix import planner
from saf_titan.run import launch
from saf_titan.run.backends import backend_lines, require_backend
from saf_titan.run.dry_run import describe
from tests.layers.test_attention import T, attention, random_pattern


def test_neighbouring_layers_that_attend_alike_share_a_line() -> None:
    layers = [attention() for _ in range(7)]
    for layer in (1, 2):
        layers[layer].set_static((0, 2), *random_pattern(2))
    layers[3].set_static((0, 1, 2, 3), *random_pattern(4))
    layers[4].set_pruned((1,))
    layers[5].set_dense((3,), torch.eye(T)[None])
    layers[6].set_static((1,), *random_pattern(1))
    layers[6].inner_attention.backend = "naive"
    assert backend_lines(layers) == [
        "Attention of layer 0: torch's attention (no head is static)",
        "Attention of layers 1 to 2: fused (auto: the fastest measured on a CPU)",
        "Attention of layer 3: static mixing (every head is static)",
        "Attention of layer 4: torch's attention for 3 live heads (the others are pruned)",
        "Attention of layer 5: torch's attention for live heads, matrix products for the static ones (patterns are "
        "matrices)",
        'Attention of layer 6: naive (model.attention_backend = "naive")',
    ]
    assert backend_lines([]) == []


def test_patterns_in_training_take_the_operator_that_has_their_gradient() -> None:
    layer = attention()
    layer.set_static((0,), *random_pattern(1))
    layer.pattern_logits()[0].requires_grad_()
    assert layer.describe_backend() == "split (auto: fused has no gradient of the pattern)"


def test_on_a_gpu_it_says_that_the_choice_is_not_timed() -> None:
    layer = attention().inner_attention
    alpha_ST, rho_ST = random_pattern(1)
    module = attention()
    module.set_static((0,), alpha_ST, rho_ST)
    layer = module.inner_attention
    text = layer.describe_backend(8, torch.device("meta"))
    assert text.startswith("split (auto: ")
    assert "not timed" in text


@pytest.mark.parametrize(
    ("options", "device_type", "message"),
    [
        (["--model.dim=1024", "--model.num_heads=4"], "cuda", "takes head dims up to 128 on a GPU, but D=256"),
        (["--saf.enable=true", "--saf.pattern_lr=0.1"], "cpu", "saf.pattern_lr = 0.1 needs"),
    ],
)
def test_a_backend_that_cannot_run_is_refused_with_those_that_can(
    options: list[str], device_type: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        require_backend(load_config(None, [*options, "--model.attention_backend=fused"]), device_type)
    text = str(error.value)
    assert text.startswith('[model] attention_backend = "fused": ')
    assert message in text
    assert text.endswith("choose auto or naive or split")
    for other in ("auto", "naive", "split"):
        require_backend(load_config(None, [*options, f"--model.attention_backend={other}"]), device_type)


def test_on_a_gpu_without_triton_only_the_naive_backend_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "HAS_TRITON", False)
    for backend in ("auto", "split", "fused"):
        run = load_config(None, [f"--model.attention_backend={backend}"])
        with pytest.raises(ConfigError, match=r"needs the package triton on a GPU.*choose naive"):
            require_backend(run, "cuda")
        require_backend(run, "cpu")


def test_the_dry_run_refuses_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saf_titan.compat.device_type", lambda: "cuda")
    options = ["--model.dim=1024", "--model.num_heads=4", "--model.attention_backend=fused"]
    with pytest.raises(ConfigError, match="attention_backend"):
        describe(load_config(None, options))


def test_the_launch_refuses_it_before_it_builds_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(BaseException):
        pass

    def leave(status: int) -> None:
        assert status == 1
        raise Left

    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "init_logger", lambda: None)
    monkeypatch.setattr(launch, "leave", leave)
    options = ["--saf.enable=true", "--saf.pattern_lr=0.1", "--model.attention_backend=fused"]
    with pytest.raises(Left):
        launch.launch(load_config(None, [*options, f"--dump_folder={tmp_path / 'run'}"]))
    assert '[model] attention_backend = "fused": has no gradient' in (tmp_path / "run/error-rank0.txt").read_text()
    assert not (tmp_path / "run/checkpoint").exists()
