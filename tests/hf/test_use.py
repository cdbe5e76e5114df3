"""Models with a plan in use: saved, loaded, generating with every cache, padded, trained, adapted.

Covers hf/complete.py too.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, StaticCache

import saf_titan.hf
from saf_titan.hf.measure import calibrate_model
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings
from tests.hf.tiny import MODEL_TYPES, D, H, T, V, our_model, stock_model, tokens


def frozen_model(model_type: str, *, content: str = "mean", **changes: Any) -> Any:
    model = our_model(model_type, **changes)
    settings = PlanSettings(rate=0.5, max_fit_kl=100.0, selector="random", seed=3, content=content)
    model.set_plan(make_plan(calibrate_model(model, tokens()), settings))
    model.zero_unused_weights()
    return model


@torch.no_grad()
def logits_of(model: Any, tokens_BT: Tensor, **inputs: Any) -> Tensor:
    logits: Tensor = model(input_ids=tokens_BT, **inputs).logits
    return logits


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("content", ["mean", "prune"])
def test_cached_decoding_equals_the_whole_forward(model_type: str, content: str) -> None:
    model, text = frozen_model(model_type, content=content), tokens(3, seed=5)
    whole = logits_of(model, text)
    cache = None
    # a prompt, several tokens at once, then one by one
    for start, stop in [(0, 9), (9, 12), *((t, t + 1) for t in range(12, T))]:
        with torch.no_grad():
            output = model(input_ids=text[:, start:stop], cache=cache, use_cache=True)
        cache = output.cache
        torch.testing.assert_close(output.logits, whole[:, start:stop], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_cache_of_fixed_size(model_type: str) -> None:
    model, text = frozen_model(model_type), tokens(2, seed=5)
    whole = logits_of(model, text)
    cache = StaticCache(config=model.config, max_cache_len=T + 3)
    for start, stop in [(0, 9), *((t, t + 1) for t in range(9, T))]:
        output = logits_of(model, text[:, start:stop], cache=cache, use_cache=True)
        torch.testing.assert_close(output, whole[:, start:stop], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_generation_with_a_cache_of_fixed_size(model_type: str) -> None:
    model, prompt = frozen_model(model_type), tokens(2, 9)
    mask = torch.ones_like(prompt)
    mask[1, :4] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 8, "min_new_tokens": 8}
    assert torch.equal(
        model.generate(prompt, **settings, cache_implementation="static"), model.generate(prompt, **settings)
    )


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_pickled_model_is_the_same_model(model_type: str) -> None:
    model = frozen_model(model_type)
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model)
    assert type(again.config) is type(model.config)
    assert torch.equal(logits_of(again, tokens()), logits_of(model, tokens()))
    # what another process does that has made none of the classes
    for kind in (type(model), type(model.config)):
        assert getattr(saf_titan.hf.model, kind.__name__) is kind


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_padding_at_the_left_changes_no_token(model_type: str) -> None:
    """Greedy generation of a ragged batch is that of each prompt alone."""
    model = frozen_model(model_type)
    prompts = [tokens(1, length, seed=length)[0] for length in (3, 9, 6, 9)]
    alone = [
        model.generate(prompt[None], attention_mask=torch.ones_like(prompt)[None], max_new_tokens=8, min_new_tokens=8)
        for prompt in prompts
    ]
    batch = torch.stack([torch.nn.functional.pad(prompt, (9 - len(prompt), 0)) for prompt in prompts])
    mask = (batch > 0).long()
    together = model.generate(batch, attention_mask=mask, max_new_tokens=8, min_new_tokens=8)
    for expected, row in zip(alone, together, strict=True):
        assert row[-8:].tolist() == expected[0, -8:].tolist()


def test_padding_at_the_right_changes_no_token_before_it() -> None:
    model, text = frozen_model("llama"), tokens(2, seed=4)
    mask = torch.ones_like(text)
    mask[1, 10:] = 0
    logits = logits_of(model, text, attention_mask=mask)
    torch.testing.assert_close(logits[1, :10], logits_of(model, text[1:, :10])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"attention_mask": torch.tensor([[1, 1, 0, 1, 1]])}, "middle of a sequence"),
        ({"attention_mask": torch.ones(1, 1, 5, 5, dtype=torch.bool)}, "four-dimensional"),
        ({"position_ids": torch.tensor([[0, 1, 0, 1, 2]])}, "packs sequences"),
    ],
)
def test_inputs_that_static_heads_cannot_follow(inputs: dict[str, Tensor], message: str) -> None:
    model = frozen_model("llama")
    with pytest.raises(ValueError, match=message):
        logits_of(model, tokens(1, 5), **inputs, use_cache=False)
    model.set_plan(None)
    logits_of(model, tokens(1, 5), **inputs, use_cache=False)


def test_a_text_longer_than_the_patterns() -> None:
    model = frozen_model("llama")
    with pytest.raises(ValueError, match=f"has {T + 1} tokens, and the static heads of this model are fitted to {T}"):
        logits_of(model, tokens(1, T + 1))
    prompt = {"inputs": tokens(1, T - 2), "attention_mask": torch.ones(1, T - 2, dtype=torch.int64)}
    assert model.generate(**prompt, max_new_tokens=3, min_new_tokens=3).shape[1] == T + 1
    with pytest.raises(ValueError, match=f"up to {T + 2} tokens, and .* fitted to {T}: ask for at most {T + 1}"):
        model.generate(**prompt, max_new_tokens=4)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("reader", [saf_titan.hf.load, AutoModelForCausalLM.from_pretrained])
def test_saved_and_loaded(model_type: str, reader: Any, tmp_path: Path) -> None:
    model = frozen_model(model_type)
    model.save_pretrained(tmp_path)
    again = reader(tmp_path)
    assert type(again) is type(model)
    assert again.plan.digest == model.plan.digest
    assert torch.equal(logits_of(again, tokens()), logits_of(model, tokens()))
    again.save_pretrained(tmp_path / "again")
    for name in ("config.json", "model.safetensors", "saf_plan.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_an_ordinary_folder_gives_the_same_logits(model_type: str, tmp_path: Path) -> None:
    stock = stock_model(model_type)
    stock.save_pretrained(tmp_path)
    torch.testing.assert_close(
        logits_of(saf_titan.hf.load(tmp_path), tokens()), logits_of(stock, tokens()), rtol=1e-5, atol=1e-5
    )


# NumPy's and gguf's own
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_gguf_file(tmp_path: Path) -> None:
    stock = stock_model("llama", attention_bias=False, num_key_value_heads=H)
    weights = stock.state_dict()
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(H * D)
    writer.add_feed_forward_length(48)
    writer.add_head_count(H)
    writer.add_head_count_kv(H)
    writer.add_rope_dimension_count(D)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(stock.config.rms_norm_eps)
    writer.add_vocab_size(V)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{n}" for n in range(V)])
    writer.add_token_scores([0.0] * V)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, weight in weights.items():
        if "q_proj" in name or "k_proj" in name:
            # llama.cpp rotates pairs of neighbours
            weight = weight.view(H, 2, D // 2, -1).transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), weight.numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = saf_titan.hf.load(tmp_path / "tiny.gguf")
    assert model.config.model_type == "saf_titan_llama"
    # plain weights, which transformers lets a user cast
    assert not hasattr(model.config, "quantization_config")
    model = model.float()
    torch.testing.assert_close(logits_of(model, tokens()), logits_of(stock, tokens()), rtol=1e-5, atol=1e-5)
    whole = (tmp_path / "tiny.gguf").read_bytes()
    for name, content in (("empty", b""), ("junk", b"GGUF" + bytes(20)), ("half", whole[: len(whole) // 2])):
        (tmp_path / f"{name}.gguf").write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}\.gguf cannot be read as a \.gguf file: it is damaged"):
            saf_titan.hf.load(tmp_path / f"{name}.gguf")
    model.set_plan(frozen_model("llama").plan)
    model.save_pretrained(tmp_path / "frozen")
    assert torch.equal(logits_of(saf_titan.hf.load(tmp_path / "frozen"), tokens()), logits_of(model, tokens()))


def test_a_folder_without_all_weights_is_refused(tmp_path: Path) -> None:
    stock_model("llama", attention_bias=False).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text()) | {"attention_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="lacks weights of SAFLlamaForCausalLM"):
        saf_titan.hf.load(tmp_path)


def test_a_model_without_live_heads_has_nothing_to_calibrate() -> None:
    model = our_model("llama")
    model.set_plan(make_plan(calibrate_model(model, tokens()), PlanSettings(rate=1.0, max_fit_kl=100.0)))
    with pytest.raises(ValueError, match="every head of the model is static already: there is nothing left"):
        calibrate_model(model, tokens())


def test_a_plan_is_loaded_into_its_own_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = frozen_model("llama").plan
    stock = stock_model("llama")
    stock.save_pretrained(tmp_path / "own")
    assert saf_titan.hf.load(tmp_path / "own", plan).plan is plan
    assert not caplog.records
    stock.lm_head.weight.data *= 1.1
    stock.save_pretrained(tmp_path / "trained")
    assert saf_titan.hf.load(tmp_path / "trained", plan).plan is plan
    assert next(record.getMessage() for record in caplog.records).startswith("the plan is of other weights than those")
    stock_model("llama", vocab_size=V + 1).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=f"the plan is of another model than .*: vocab_size is {V} there and {V + 1}"):
        saf_titan.hf.load(tmp_path / "other", plan)


def test_a_plan_that_the_config_does_not_name_is_an_error(tmp_path: Path) -> None:
    frozen_model("llama").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    del settings["saf_plan"]
    file.write_text(json.dumps(settings))
    for reader in (saf_titan.hf.load, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=r"its config\.json names no plan: static heads would attend uniformly"):
            reader(tmp_path)
    # a model without static heads that is saved in the same place leaves no plan behind
    our_model("llama").save_pretrained(tmp_path)
    assert saf_titan.hf.load(tmp_path).plan is None
    # beside an ordinary model a plan is just a file
    stock_model("llama").save_pretrained(tmp_path / "stock")
    frozen_model("llama").plan.save(tmp_path / "stock/saf_plan.safetensors")
    assert saf_titan.hf.load(tmp_path / "stock").plan is None


def test_half_precision_keeps_the_patterns(tmp_path: Path) -> None:
    # GPT-2 has no other float32 buffers, such as rotation frequencies
    frozen_model("gpt2").save_pretrained(tmp_path)
    exact, half = (saf_titan.hf.load(tmp_path, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    exact.to(torch.bfloat16)
    assert torch.equal(logits_of(half, tokens()), logits_of(exact, tokens()))
