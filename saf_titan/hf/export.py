"""Convert checkpoints of this trainer to folders of transformers, and back.

`gpt` becomes GPT-NeoX (rotary positions) or GPT-2 (learned positions). torchtitan's families become their own classes,
through torchtitan's adapters. A checkpoint with a plan becomes one of our classes, a checkpoint without a plan the
ordinary class.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedConfig, Qwen3Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from saf_titan.config import RunConfig
from saf_titan.fields.places import require_new_folder
from saf_titan.hf.gpt_weights import gpt_config_of, gpt_from_hf, gpt_from_nanogpt, gpt_to_hf
from saf_titan.hf.model import PREFIX, load, model_class, our_config
from saf_titan.hf.tokenizer_files import write_tokenizer
from saf_titan.models import model_spec
from saf_titan.saf.container import readable
from saf_titan.saf.install.checkpoint import model_tensors, read_checkpoint, write_checkpoint
from saf_titan.saf.plan.plan import StaticPlan


def export_checkpoint(run: RunConfig, checkpoint: Path, out: Path, *, tokenizer: str | None = None) -> str:
    """Write a checkpoint as a folder that transformers loads, with its plan, tokenizer and generation settings.

    Args:
        run: the configuration of the run that wrote the checkpoint.
        checkpoint: the folder <run>/checkpoint/step-N.
        out: the new folder.
        tokenizer: name or file of the tokenizer; None for the tokenizer of the run's corpus.

    Returns a description of what was written. Raises ValueError if the folder `out` exists, the checkpoint is damaged
    or belongs to another model than the run's, or ``tokenizer`` is not the tokenizer of the corpus.
    """
    require_new_folder(out)
    state = read_checkpoint(checkpoint)
    weights = model_tensors(state)
    _require_weights(weights, run, checkpoint)
    plan_bytes = state.get("train_state", {}).get("saf_plan")
    plan = StaticPlan.from_bytes(plan_bytes, source=f"the plan in {checkpoint}") if plan_bytes is not None else None
    config = _config_of(run)
    if plan is not None:
        config = our_config(config)
        model = model_class(config)(config)
    else:
        model = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING)[type(config)](config)
    _fill(model, _to_hf(weights, run))
    if plan is not None:
        model.set_plan(plan)
    tokenizer_note, eos = write_tokenizer(run, out, tokenizer)
    model.generation_config = GenerationConfig(bos_token_id=eos, eos_token_id=eos, pad_token_id=eos)
    model.save_pretrained(out)
    shared = run.model.family == "gpt" and run.shape.num_kv_heads < run.shape.num_heads
    notes = [
        type(model).__name__,
        f"{len(plan.heads)} static heads" if plan else "no static heads",
        *(["each kv head repeated for the query heads that share it"] if shared else []),
        tokenizer_note,
    ]
    return ", ".join(notes)


def import_model(run: RunConfig, folder: Path, out: Path) -> str:
    """Write a folder of transformers, or nanoGPT's ``ckpt.pt``, as a checkpoint that a run can start from.

    The run must set checkpoint.initial_load_model_only = true.

    Returns a description of what was written. Raises ValueError if the weights are not those of the run's model.
    """
    require_new_folder(out)
    if folder.suffix == ".pt":
        weights = _read_nanogpt(folder, run)
        _require_weights(weights, run, folder)
        write_checkpoint(dict(weights), out)
        return f"{len(weights)} tensors of nanoGPT, no static heads"
    model = load(folder, dtype=torch.float32)
    _require_same_config(model.config, run, folder)
    weights = _from_hf(dict(model.state_dict()), run)
    _require_weights(weights, run, folder)
    state: dict[str, Any] = dict(weights)
    if model.plan is not None:
        state["train_state"] = {"saf_plan": model.plan.to_bytes()}
    write_checkpoint(state, out)
    plan = f"{len(model.plan.heads)} static heads" if model.plan else "no static heads"
    return f"{len(weights)} tensors, {plan}"


def _read_nanogpt(file: Path, run: RunConfig) -> dict[str, Tensor]:
    """Return the weights of a checkpoint of nanoGPT's train.py, read without running code in the file."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: a checkpoint of nanoGPT is needed")
    with readable(file, "checkpoint of nanoGPT, read without unpickling code"):
        saved = torch.load(file, map_location="cpu", weights_only=True)
        sizes, weights = saved["model_args"], saved["model"]
        heads, width, bias = int(sizes["n_head"]), int(sizes["n_embd"]), bool(sizes["bias"])
        # torch.compile adds this prefix
        weights = {str(name).removeprefix("_orig_mod."): weight.float() for name, weight in weights.items()}
    if run.model.family != "gpt" or run.model.position != "learned":
        raise ValueError(
            f'{file} is of a GPT with learned positions: set model.family = "gpt", model.position = "learned"'
        )
    shape = run.shape
    if (int(sizes["n_layer"]), heads, heads) != (shape.num_layers, shape.num_heads, shape.num_kv_heads):
        raise ValueError(
            f"{file} has {sizes['n_layer']} layers of {heads} heads, and the configured model {shape.num_layers} of "
            f"{shape.num_heads} ({shape.num_kv_heads} kv heads): set model.num_layers and model.num_heads"
        )
    if width != shape.dim:
        raise ValueError(f"{file} has a width of {width}, and the configured model of {shape.dim}: set model.dim")
    if bias != run.model.bias:
        raise ValueError(f"{file} was trained with bias = {bias}: set model.bias = {str(bias).lower()}")
    try:
        return gpt_from_nanogpt(weights, run)
    except KeyError as error:
        raise ValueError(f"{file} has no tensor {error}: it is not of nanoGPT's model.py") from error


def _config_of(run: RunConfig) -> PreTrainedConfig:
    """Return the configuration of transformers for the run's model."""
    if run.model.family == "gpt":
        return gpt_config_of(run)
    spec = _spec(run)
    layer = spec.model.layers[0]
    attention, shape = layer.attention, run.shape
    settings: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.dim,
        "intermediate_size": layer.feed_forward.w1.out_features,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": run.training.seq_len,
        "rms_norm_eps": spec.model.norm.eps,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": _rope_parameters(attention.rope),
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return {"llama3": LlamaConfig, "qwen3": Qwen3Config}[run.model.family](**settings)


def _rope_parameters(rope: Any) -> dict[str, Any]:
    if rope.scaling == "none":
        return {"rope_type": "default", "rope_theta": rope.theta}
    if rope.scaling != "llama":
        raise ValueError(f"rotary positions with scaling {rope.scaling!r} cannot be exported")
    return {
        "rope_type": "llama3",
        "rope_theta": rope.theta,
        "factor": rope.scaling_factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position_embeddings,
    }


def _to_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    if run.model.family == "gpt":
        return gpt_to_hf(weights, run)
    return _adapter(run).to_hf(dict(weights))


def _from_hf(weights: Mapping[str, Tensor], run: RunConfig) -> dict[str, Tensor]:
    if run.model.family == "gpt":
        return gpt_from_hf(weights, run)
    named: dict[str, Tensor] = _adapter(run).from_hf(dict(weights))
    return {name: weight.contiguous() for name, weight in named.items()}


def _spec(run: RunConfig) -> Any:
    return model_spec(run.model, run.shape, max_seq_len=run.max_seq_len)


def _adapter(run: RunConfig) -> Any:
    spec = _spec(run)
    return spec.state_dict_adapter(spec.model, None)


def _require_weights(weights: Mapping[str, Tensor], run: RunConfig, checkpoint: Path) -> None:
    """Raise ValueError, which names a tensor, if names or shapes of the weights are not those of the run's model."""
    with torch.device("meta"):
        needed = _spec(run).model.build().state_dict()
    for name in sorted(needed.keys() | weights.keys()):
        sizes = [tuple(tensors[name].shape) if name in tensors else None for tensors in (needed, weights)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{name}: the configured model has {sizes[0] or 'no such tensor'}, and {checkpoint} "
                f"{sizes[1] or 'none'}; give the configuration of its run with --config"
            )


@torch.no_grad()
def _fill(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy the weights into a model. Biases that our decoder does not have become zero."""
    for name, weight in model.state_dict().items():
        if name in weights:
            weight.copy_(weights[name])
        elif name.endswith("bias"):
            weight.zero_()
        else:
            # a tied output matrix is the embedding itself
            assert name == "lm_head.weight", name


def _require_same_config(config: PreTrainedConfig, run: RunConfig, folder: Path) -> None:
    ordinary, needed = config.to_dict(), _config_of(run)
    kind = config.model_type.removeprefix(PREFIX)
    if kind != needed.model_type:
        raise ValueError(
            f"{folder} is a model of type {kind}, and the configured model is of type {needed.model_type}: set "
            "model.family, and for gpt model.position, to those of the folder"
        )
    for name, value in needed.to_dict().items():
        if name in _FREE or name not in ordinary:
            continue
        found = ordinary[name]
        if name in _ACTIVATIONS:
            found = _SAME_ACTIVATION.get(found, found)
        if found != value:
            remedy = _REMEDIES.get(name, "set [model] to the sizes of the folder")
            raise ValueError(f"{folder} has {name} = {ordinary[name]!r}, and the configured model {value!r}: {remedy}")


_FREE = frozenset(
    {"model_type", "architectures", "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"}
    | {"transformers_version", "use_cache", "initializer_range", "max_position_embeddings", "_name_or_path"}
    | {"attention_dropout", "hidden_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "classifier_dropout"}
    | {"max_window_layers", "layer_types", "sliding_window"}
)
"""Settings of transformers that do not change what the weights compute."""

_ACTIVATIONS = ("activation_function", "hidden_act")
_SAME_ACTIVATION = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "gelu_python": "gelu"}
"""Other names in transformers for the same activation function."""

_GELU = 'set model.gelu, "tanh" for gelu_new or "exact" for gelu; no other function can be imported'
_LENGTH = "set training.seq_len to the positions of the folder"
_REMEDIES = {**dict.fromkeys(_ACTIVATIONS, _GELU), "n_positions": _LENGTH}
"""What to do about a setting that differs and is not a size of the model."""
