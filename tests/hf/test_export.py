"""Our checkpoints to transformers and back: logits, bytes, tokenizer, and a folder a user can load.

Covers `hf/gpt_weights.py` and `hf/tokenizer_files.py` too.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import rust_data
from saf_titan.config import RunConfig, load_config
from saf_titan.hf.__main__ import main
from saf_titan.hf.tokenizer_files import gpt2_tokenizer
from saf_titan.layers.attention import SAFAttention
from saf_titan.models import model_spec
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.install.checkpoint import apply_plan, model_tensors, read_checkpoint, write_checkpoint
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings
from tests.data.corpus import TOKENIZER_SHA256, write_corpus

T = 24
GPT = "flavor = 'debug'\nnum_layers = 2\nnum_heads = 4\ndim = 32\nvocab_size = 256\n"
MODELS = {
    "gpt rope": (GPT, "gpt_neox"),
    "gpt learned": (GPT + "position = 'learned'\n", "gpt2"),
    "gpt grouped": (GPT + "num_kv_heads = 2\nrope_theta = 500.0\n", "gpt_neox"),
    "gpt learned grouped": (GPT + "num_kv_heads = 1\nposition = 'learned'\n", "gpt2"),
    "gpt learned bias": (GPT + "position = 'learned'\nbias = true\ngelu = 'tanh'\n", "gpt2"),
    "gpt grouped bias": (GPT + "num_kv_heads = 2\nbias = true\n", "gpt_neox"),
    "llama3": ("family = 'llama3'\nflavor = 'debugmodel'\nnum_layers = 2\n", "llama"),
    "qwen3": ("family = 'qwen3'\nflavor = 'debugmodel'\nnum_layers = 2\n", "qwen3"),
}


def tokens(num_sequences: int = 4) -> Tensor:
    return torch.randint(256, (num_sequences, T), generator=torch.Generator().manual_seed(1))


class Made:
    """A checkpoint with random weights, its configuration, and the logits of our model."""

    def __init__(self, folder: Path, section: str, content: str | None) -> None:
        self.config = folder / "config.toml"
        text = f"[model]\n{section}[training]\nseq_len = {T}\n[data]\npath = '{folder / 'corpus'}'\n"
        self.config.write_text(text)
        run = load_config(self.config)
        model = self._model(run)
        state: dict[str, Any] = {name: weight.clone() for name, weight in model.state_dict().items()}
        if content is not None:
            attentions = [module for module in model.modules() if isinstance(module, SAFAttention)]
            calibration = calibrate(attentions, [tokens()], model)
            settings = PlanSettings(rate=0.5, selector="random", max_fit_kl=100.0, content=content)
            self.plan = make_plan(calibration, settings)
            install(attentions, self.plan)
            apply_plan(state, self.plan, run.shape.num_heads)
        self.checkpoint = folder / "checkpoint/step-5"
        write_checkpoint(state, self.checkpoint)
        with torch.no_grad():
            model.load_state_dict(model_tensors(state))
            self.logits = model(tokens())

    def _model(self, run: RunConfig) -> nn.Module:
        spec = model_spec(run.model, run.shape, max_seq_len=T)
        for layer in spec.model.layers:
            layer.attention.rope.max_seq_len = T
        torch.manual_seed(0)
        model = spec.model.build()
        model.init_weights()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape))
        return model.eval()


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, content) for name in MODELS for content in (None, "mean", "prune") if content != "prune" or "gpt" in name],
)
def test_logits_and_bytes(name: str, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section, model_type = MODELS[name]
    made, out = Made(tmp_path, section, content), tmp_path / "model"
    assert main(["export", str(made.checkpoint), "--config", str(made.config), "--out", str(out)]) == 0
    assert ("repeated" in capsys.readouterr().out) == ("grouped" in name)
    found = json.loads((out / "config.json").read_text())["model_type"]
    assert found == (model_type if content is None else f"saf_titan_{model_type}")
    model = AutoModelForCausalLM.from_pretrained(out)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()).logits, made.logits, rtol=1e-5, atol=1e-5)
    if content is not None:
        assert model.plan.digest == made.plan.digest

    assert main(["import", str(out), "--config", str(made.config), "--out", str(tmp_path / "back")]) == 0
    before, after = (read_checkpoint(folder) for folder in (made.checkpoint, tmp_path / "back"))
    assert model_tensors(after).keys() == model_tensors(before).keys()
    for key, weight in model_tensors(before).items():
        assert torch.equal(weight, after[key]), key
    assert after.get("train_state") == before.get("train_state")


def write_nanogpt(path: Path, made: Made, **sizes: object) -> None:
    """What nanoGPT's train.py saves, compiled model and optimizer included, with the weights of our checkpoint."""
    ours = model_tensors(read_checkpoint(made.checkpoint))
    names = {"tok_embeddings": "transformer.wte", "pos_embeddings": "transformer.wpe", "norm": "transformer.ln_f"}
    parts = {"attention.wo": "attn.c_proj", "feed_forward.w1": "mlp.c_fc", "feed_forward.w2": "mlp.c_proj"}
    parts |= {"attention_norm": "ln_1", "ffn_norm": "ln_2"}
    has_bias = "norm.bias" in ours
    names |= {
        f"layers.{layer}.{own}": f"transformer.h.{layer}.{name}" for layer in range(2) for own, name in parts.items()
    }
    weights = {}
    for kind in ("weight", "bias") if has_bias else ("weight",):
        weights |= {f"{name}.{kind}": ours[f"{own}.{kind}"] for own, name in names.items() if f"{own}.{kind}" in ours}
        for layer in range(2):
            rows = [ours[f"layers.{layer}.attention.qkv_linear.w{part}.{kind}"] for part in "qkv"]
            weights[f"transformer.h.{layer}.attn.c_attn.{kind}"] = torch.cat(rows)
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    torch.save(
        {
            "model": {f"_orig_mod.{name}": weight for name, weight in weights.items()},
            "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
            "model_args": {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": T, "bias": has_bias} | sizes,
            "iter_num": 3,
            "best_val_loss": torch.tensor(3.0),
            "config": {"out_dir": "out"},
        },
        path,
    )


@pytest.mark.parametrize("bias", [False, True])
def test_nanogpt(bias: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = GPT + f"position = 'learned'\nbias = {str(bias).lower()}\n"
    made = Made(tmp_path, section, None)
    write_nanogpt(tmp_path / "ckpt.pt", made)
    words = ["--config", str(made.config), "--out", str(tmp_path / "back")]
    assert main(["import", str(tmp_path / "ckpt.pt"), *words]) == 0
    before, after = (model_tensors(read_checkpoint(folder)) for folder in (made.checkpoint, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())

    write_nanogpt(tmp_path / "bias.pt", made, bias=not bias)
    write_nanogpt(tmp_path / "heads.pt", made, n_head=8)
    write_nanogpt(tmp_path / "width.pt", made, n_embd=64)
    # a model.py that was changed, here to rotary positions
    saved = torch.load(tmp_path / "ckpt.pt")
    del saved["model"]["_orig_mod.transformer.wpe.weight"]
    torch.save(saved, tmp_path / "lacking.pt")
    torch.save(saved["model"], tmp_path / "bare.pt")
    # a class of another program would run its code
    (tmp_path / "code.pt").write_bytes(pickle.dumps({"model": print}))
    for name, message in [
        ("bias", f"bias = {not bias}: set model.bias = {str(not bias).lower()}"),
        ("heads", "2 layers of 8 heads"),
        ("width", "has a width of 64, and the configured model of 32: set model.dim"),
        ("lacking", "has no tensor 'transformer.wpe.weight': it is not of nanoGPT's model.py"),
        ("bare", "is not a readable checkpoint of nanoGPT"),
        ("code", "without unpickling code"),
        ("none", "does not exist"),
    ]:
        words = ["--config", str(made.config), "--out", str(tmp_path / "x")]
        capsys.readouterr()
        assert main(["import", str(tmp_path / f"{name}.pt"), *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_the_tokenizer_and_its_end_go_along(tmp_path: Path) -> None:
    made = Made(tmp_path, GPT.replace("256", "50304"), None)
    (tmp_path / "corpus").mkdir()
    write_corpus(
        tmp_path / "corpus", train=np.arange(300), val=np.arange(300), vocab_size=50257, eot=50256, tokenizer="gpt2"
    )
    ours = rust_data.Tokenizer("gpt2")
    manifest = tmp_path / "corpus/manifest.json"
    manifest.write_text(manifest.read_text().replace(TOKENIZER_SHA256, ours.sha256))
    assert main(["export", str(made.checkpoint), "--out", str(tmp_path / "model")]) == 0
    text = "Don't panic: naïve 東京 \n\n  1234\U0001f600"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer(text)["input_ids"] == ours.encode(text).tolist()
    assert tokenizer.decode(ours.encode(text)) == text
    assert tokenizer.eos_token_id == 50256
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.generation_config.eos_token_id == 50256
    prompt = tokenizer("hello", return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=3, do_sample=False).shape[1] <= 4


def test_all_of_gpt2s_vocabulary_has_its_ids() -> None:
    ours, made = rust_data.Tokenizer("gpt2"), gpt2_tokenizer()
    assert made.get_vocab_size() == ours.vocab_size
    text = "".join(map(chr, range(1, 3000)))
    assert made.encode(text).ids == ours.encode(text).tolist()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Made(tmp_path, GPT, "mean")
    other = tmp_path / "other.toml"
    other.write_text(made.config.read_text().replace("num_layers = 2", "num_layers = 3"))
    assert main(["export", str(made.checkpoint), "--out", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    for words, message in [
        (f"export {tmp_path} --out {tmp_path}/x", "not a complete checkpoint"),
        (f"export {made.checkpoint} --out {tmp_path}/model", "exists already"),
        (f"export {made.checkpoint} --out {made.config}/x", "is a file; choose another place"),
        (f"export {made.checkpoint} --config {other} --out {tmp_path}/x", "configuration of its run with --config"),
        (f"import {tmp_path}/model --config {other} --out {tmp_path}/x", "num_hidden_layers"),
        (f"import {tmp_path}/none --config {made.config} --out {tmp_path}/x", "none does not exist: give a folder of"),
        (f"import {made.config} --config {made.config} --out {tmp_path}/x", "is no model of transformers"),
    ]:
        assert main(words.split()) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not (tmp_path / "x").exists()
