"""A GPT-2 of transformers with biases: imported, frozen, trained, and exported again."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from saf_titan.circuits.groups import parameter_groups
from saf_titan.config import load_config
from saf_titan.config.circuit_groups import CircuitGroup
from saf_titan.generate.cached_model import cached
from saf_titan.hf.__main__ import main
from saf_titan.layers.attention import SAFAttention
from saf_titan.models import model_spec
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.install.checkpoint import (
    apply_plan,
    export_compact,
    load_weights,
    model_tensors,
    read_checkpoint,
    restore_full,
    write_checkpoint,
)
from saf_titan.saf.install.compensate import compensated_weights
from saf_titan.saf.install.install import install, zero_unused_weights
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings

T, V, H, D = 24, 61, 4, 8
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def tokens(num_sequences: int = 4, seed: int = 1) -> Tensor:
    return torch.randint(V, (num_sequences, T), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def stock(tmp_path: Path) -> Any:
    """GPT-2 as it is published, small: tanh GELU, and biases that are not zero."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=H * D, n_layer=2, n_head=H, n_positions=T)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(tmp_path / "gpt2")
    return model


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    sizes = f"num_layers = 2\nnum_heads = {H}\ndim = {H * D}\nvocab_size = {V}"
    path.write_text(
        f"[model]\nflavor = 'debug'\n{sizes}\nposition = 'learned'\nbias = true\ngelu = 'tanh'\n"
        f"[training]\nseq_len = {T}\n[data]\npath = '{tmp_path / 'none'}'\n"
    )
    return path


@pytest.fixture
def imported(stock: Any, config: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run/checkpoint/step-0"
    assert main(["import", str(tmp_path / "gpt2"), "--config", str(config), "--out", str(out)]) == 0
    return out


def load(config: Path, checkpoint: Path) -> Any:
    run = load_config(config)
    model = model_spec(run.model, run.shape, max_seq_len=T).model.build()
    model.init_weights()
    load_weights(checkpoint, dict(model.state_dict()))
    return model.eval()


def attentions_of(model: Any) -> list[SAFAttention]:
    return [block.attention for block in model.layers.values()]


def frozen(config: Path, checkpoint: Path, content: str = "mean") -> tuple[Any, Any]:
    """The imported model with half of its heads static, and the plan."""
    model = load(config, checkpoint)
    calibration = calibrate(attentions_of(model), [tokens()], model)
    settings = PlanSettings(rate=0.5, selector="random", seed=2, max_fit_kl=100.0, content=content)
    return model, make_plan(calibration, settings)


def test_imported_logits_are_those_of_transformers(stock: Any, config: Path, imported: Path, tmp_path: Path) -> None:
    with torch.no_grad():
        expected = stock(tokens()).logits
        torch.testing.assert_close(load(config, imported)(tokens()), expected, **CLOSE)
    out = tmp_path / "back"
    assert main(["export", str(imported), "--config", str(config), "--out", str(out)]) == 0
    again = AutoModelForCausalLM.from_pretrained(out)
    assert type(again) is GPT2LMHeadModel
    with torch.no_grad():
        assert torch.equal(again(tokens()).logits, expected)


def test_another_name_of_the_same_activation(stock: Any, config: Path, tmp_path: Path) -> None:
    stock.config.activation_function = "gelu_pytorch_tanh"
    stock.save_pretrained(tmp_path / "renamed")
    out = tmp_path / "run/checkpoint/step-0"
    assert main(["import", str(tmp_path / "renamed"), "--config", str(config), "--out", str(out)]) == 0
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path / "renamed")(tokens()).logits
        torch.testing.assert_close(load(config, out)(tokens()), expected, **CLOSE)


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ({"activation_function": "gelu"}, {}, 'set model.gelu, "tanh" for gelu_new or "exact" for gelu'),
        ({}, {f"seq_len = {T}": f"seq_len = {2 * T}"}, "set training.seq_len to the positions of the folder"),
        ({}, {"'learned'": "'rope'"}, "of type gpt2, and the configured model is of type gpt_neox: set model.family"),
    ],
)
def test_a_setting_of_another_model_is_named_with_its_remedy(
    theirs: dict[str, str],
    ours: dict[str, str],
    message: str,
    stock: Any,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stock.config.update(theirs)
    stock.save_pretrained(tmp_path / "gpt2")
    for old, new in ours.items():
        config.write_text(config.read_text().replace(old, new))
    assert main(["import", str(tmp_path / "gpt2"), "--config", str(config), "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", ["mean", "prune"])
def test_bias_rows_of_static_heads_stay_zero(content: str, config: Path, imported: Path, tmp_path: Path) -> None:
    model, plan = frozen(config, imported, content)
    attentions = attentions_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)

    def train(steps: int) -> None:
        for step in range(steps):
            batch = tokens(seed=10 + step)
            F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()

    train(2)
    install(attentions, plan)
    zero_unused_weights(attentions, plan, optimizer.state)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(3)
    for layer, heads in plan.layers().items():
        qkv = attentions[layer].qkv_linear
        rows = qkv.head_rows([head.head for head in heads])
        for linear in (qkv.wq, qkv.wk, *((qkv.wv,) if content == "prune" else ())):
            for parameter in (linear.weight, linear.bias):
                moments = optimizer.state[parameter]
                for tensor in (parameter, moments["exp_avg"], moments["exp_avg_sq"]):
                    assert not tensor[rows].any()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == set(before)

    with torch.no_grad():
        expected = model(tokens())
    state = dict(model.state_dict()) | {"train_state": {"saf_plan": plan.to_bytes()}}
    write_checkpoint(state, tmp_path / "run/checkpoint/step-5")
    words = [str(tmp_path / "run/checkpoint/step-5"), "--config", str(config), "--out", str(tmp_path / "model")]
    assert main(["export", *words]) == 0
    with torch.no_grad():
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        torch.testing.assert_close(again(tokens()).logits, expected, **CLOSE)
    # and the compact file and back
    export_compact(tmp_path / "run/checkpoint/step-5", tmp_path / "compact", num_heads=H)
    restore_full(tmp_path / "compact", tmp_path / "full")
    full = load_file(tmp_path / "full")
    assert all(torch.equal(full[name], weight) for name, weight in model.state_dict().items())


def test_a_plan_applied_to_a_checkpoint_zeroes_the_same(config: Path, imported: Path) -> None:
    model, plan = frozen(config, imported)
    state = read_checkpoint(imported)
    changed = apply_plan(state, plan, H)
    zero_unused_weights(attentions_of(model), plan, {})
    assert any(name.endswith("wq.bias") for name in changed)
    assert not any("wo" in name or "wv" in name for name in changed)
    for name, weight in model_tensors(state).items():
        assert torch.equal(weight, model.state_dict()[name]), name


@pytest.mark.parametrize("content", ["mean", "prune"])
def test_generation_with_a_cache(content: str, config: Path, imported: Path) -> None:
    model, plan = frozen(config, imported, content)
    install(attentions_of(model), plan)
    text = tokens(2)
    with torch.no_grad(), cached(model, T) as decoder:
        logits = [decoder.prefill([row[:5].tolist() for row in text])]
        logits += [decoder.step(text[:, n].tolist()) for n in range(5, T)]
    with torch.no_grad():
        whole = model(text)[:, 4:]
    torch.testing.assert_close(torch.stack(logits, dim=1), whole, **CLOSE)


def test_compensation_leaves_the_value_bias(config: Path, imported: Path) -> None:
    """New rows bring the output of a static head nearer to the live one, with the bias as it is."""
    model, plan = frozen(config, imported)
    attentions = attentions_of(model)
    batches = [tokens(8, seed=3)]
    new = compensated_weights(attentions, batches, model, plan)
    assert new
    assert all(weights.part == "v" and weights.block.shape == (D, H * D) for weights in new.values())
    outputs: list[Tensor] = []
    hooks = [a.inner_attention.register_forward_hook(lambda m, args, y: outputs.append(y)) for a in attentions[:1]]
    with torch.no_grad():
        model(batches[0])
        install(attentions, plan)
        model(batches[0])
        for (layer, head), weights in new.items():
            if layer == 0:
                attentions[0].qkv_linear.wv.weight[head * D : head * D + D] = weights.block
        model(batches[0])
    for hook in hooks:
        hook.remove()
    heads = [head for layer, head in new if layer == 0]
    errors = [(outputs[n] - outputs[0])[:, :, heads].square().sum() for n in (1, 2)]
    assert not heads or errors[1] < errors[0]


def test_biases_follow_their_circuit_without_decay(config: Path, imported: Path) -> None:
    model = load(config, imported)
    groups = parameter_groups(model.named_parameters(), [CircuitGroup(match="qk", factor=2.0)])
    of = {name: group for group in groups for name in group.names}
    bias = of["layers.0.attention.qkv_linear.wq.bias"]
    assert (bias.name, bias.decays, bias.rule) == (
        "qk/no_decay",
        False,
        of["layers.0.attention.qkv_linear.wk.weight"].rule,
    )
    assert of["norm.bias"].name == of["layers.1.feed_forward.w1.bias"].name == "no_decay"


def test_a_model_without_biases_says_what_to_set(
    stock: Any, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace("bias = true\n", ""))
    assert main(["import", str(tmp_path / "gpt2"), "--config", str(config), "--out", str(tmp_path / "x")]) == 2
    assert "is not zero, and the configured model has no biases: set model.bias = true" in capsys.readouterr().err
    config.write_text(config.read_text().replace("gelu = 'tanh'\n", ""))
    assert main(["import", str(tmp_path / "gpt2"), "--config", str(config), "--out", str(tmp_path / "x")]) == 2
    assert "activation_function = 'gelu_new'" in capsys.readouterr().err
