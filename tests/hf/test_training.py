"""Fine-tuning of a model with static heads: Trainer and PEFT, and what stays zero."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

import saf_titan.hf
from tests.hf.reference import NAME, plan_in_use
from tests.hf.test_use import frozen_model, logits_of
from tests.hf.tiny import T, our_model, stock_model, tokens


def train(model: object, folder: Path) -> None:
    rows = [{"input_ids": row, "labels": row} for row in tokens(8, T, seed=9)]
    settings = TrainingArguments(
        str(folder),
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.1,
        report_to=[],
        save_steps=4,
        use_cpu=True,
        disable_tqdm=True,
        activation_checkpointing=True,
        dataloader_pin_memory=False,
    )
    Trainer(model, settings, train_dataset=rows).train()


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox", "qwen2"])
def test_trainer_keeps_the_plan_and_the_zeros(model_type: str, tmp_path: Path) -> None:
    model = frozen_model(model_type)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    train(model, tmp_path)
    again = saf_titan.hf.load(tmp_path / "checkpoint-4")
    assert again.plan.digest == model.plan.digest
    assert torch.equal(logits_of(again, tokens()), logits_of(model.eval(), tokens()))
    changed = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
    assert any("mlp" in name for name in changed)
    for layer in model.attentions:
        for head in layer.static_heads:
            assert not any(part.any() for part in layer.layout.rows("q", head))
        for head in layer.live_heads:
            assert layer.layout.rows("q", head)[0].all()


# PEFT asks for the name that transformers is about to drop
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_peft_trains_and_reloads(tmp_path: Path) -> None:
    model = frozen_model("llama")
    model.save_pretrained(tmp_path / "base")
    settings = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, settings)
    train(adapted, tmp_path / "run")
    adapted.save_pretrained(tmp_path / "adapter")
    expected = logits_of(adapted.eval(), tokens())
    again = PeftModel.from_pretrained(saf_titan.hf.load(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(again.eval(), tokens()), expected)
    merged = again.merge_and_unload()
    assert merged.plan.digest == model.plan.digest
    torch.testing.assert_close(logits_of(merged, tokens()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2"])
def test_gradients_are_those_of_the_definition(model_type: str) -> None:
    """Through one operator for all heads, beside a window, and beside capped scores."""
    model = frozen_model(model_type)
    reference = stock_model(model_type, NAME).double()
    gradients = []
    for each, plan in ((model, model.plan), (reference, model.plan)):
        x_BTC = each.get_input_embeddings()(tokens(2)).detach().requires_grad_()
        with plan_in_use(plan):
            each(inputs_embeds=x_BTC, use_cache=False).logits.square().mean().backward()
        gradients.append(x_BTC.grad)
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-4, atol=1e-6)


def test_another_attention_is_refused(tmp_path: Path) -> None:
    frozen_model("llama").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="attn_implementation = 'sdpa'"):
        saf_titan.hf.load(tmp_path, attn_implementation="sdpa")
    model = saf_titan.hf.load(tmp_path)
    with pytest.raises(ValueError, match="attn_implementation = 'eager'"):
        model.set_attn_implementation("eager")
    model.config._attn_implementation = "eager"
    with pytest.raises(ValueError, match=r"set_attn_implementation\('saf_titan'\)"):
        logits_of(model, tokens())
    # without the output head too
    with pytest.raises(ValueError, match=r"set_attn_implementation\('saf_titan'\)"):
        model.base_model(input_ids=tokens())


def test_an_ordinary_class_that_is_named_does_not_attend_uniformly(tmp_path: Path) -> None:
    """Transformers only warns when a class loads a folder of another model_type."""
    model = frozen_model("llama")
    model.save_pretrained(tmp_path)
    stock = LlamaForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"LlamaAttention: the model was saved with static heads, .* load it with"):
        logits_of(stock, tokens())
    # a model without static heads may be read by its ordinary class
    model.set_plan(None)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(
        logits_of(LlamaForCausalLM.from_pretrained(tmp_path), tokens()), logits_of(model, tokens())
    )


def test_a_missing_or_foreign_plan_is_refused(tmp_path: Path) -> None:
    model = frozen_model("llama")
    model.save_pretrained(tmp_path)
    frozen_model("llama", content="uniform").plan.save(tmp_path / "saf_plan.safetensors")
    with pytest.raises(ValueError, match="is not the plan"):
        saf_titan.hf.load(tmp_path)
    (tmp_path / "saf_plan.safetensors").unlink()
    with pytest.raises(ValueError, match="has no saf_plan"):
        saf_titan.hf.load(tmp_path)


def test_a_plan_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="2 layers of 4 heads, and this one has 3 of 4"):
        our_model("llama", num_hidden_layers=3).set_plan(frozen_model("llama").plan)
