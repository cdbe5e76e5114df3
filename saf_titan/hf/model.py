"""Classes of transformers models with static heads, each with its own ``model_type``.

Static heads have zeros as query and key weights. Ordinary transformers would load such weights and attend uniformly,
without an error. Because of the ``model_type``, for example ``saf_titan_llama``, it stops and names this package. Each
class is a subclass of the ordinary class, so generation, pipelines, ``Trainer`` and PEFT work with it.
"""

from __future__ import annotations

import json
import math
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import cached_file, logging

from saf_titan.hf.attention import ATTENTION
from saf_titan.hf.card import write_card
from saf_titan.hf.complete import read_complete
from saf_titan.hf.identity import PREFIX, model_identity, require_same_size
from saf_titan.hf.layer import HeadsOfLayer, attach
from saf_titan.saf.calibrate.model_identity import require_same_model
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.plan import StaticPlan

PLAN_FILE = "saf_plan.safetensors"
"""Name of the file of the plan, in the folder of a saved model; `python -m saf_titan.saf show` prints it."""

TESTED = (
    "gpt2",
    "gpt_neox",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "olmo2",
    "smollm3",
)
"""The model types of transformers that tests compare with a float64 reference. `load` accepts other model types if
their attention has a known layout. A name that is added here is also registered with the Auto classes, and tested."""


class StaticHeadsMixin:
    """What our classes add to those of transformers: the plan, and checks that no static head runs without it."""

    config: Any
    plan: StaticPlan | None
    _can_compile_fullgraph = False

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self.plan = None
        # on the decoder, because it may be called without the output head
        cast(Any, self).base_model.register_forward_pre_hook(_require_our_attention)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        """Return the name of our attention function. Raise ValueError if another attention was asked for."""
        if attn_implementation not in (None, ATTENTION):
            raise ValueError(
                f"attn_implementation = {attn_implementation!r}: a model with static heads attends by {ATTENTION!r} "
                "alone, which uses torch's fused attention for live heads; leave the argument out"
            )
        return ATTENTION

    @property
    def attentions(self) -> list[HeadsOfLayer]:
        """Return the attention layers in order, as the functions of `saf_titan.saf` take them."""
        return attach(cast(nn.Module, self))

    @property
    def blocks(self) -> list[nn.Module]:
        """Return the transformer blocks in order."""
        model = cast(nn.Module, self)
        ours = {id(layer.module) for layer in self.attentions}
        paths = [name for name, module in model.named_modules() if id(module) in ours]
        return [model.get_submodule(path.rpartition(".")[0]) for path in paths]

    @property
    def attention_norms(self) -> list[nn.Module | None]:
        """Return, for each layer, the RMS norm between its attention and the residual stream, or None.

        Gemma and Olmo 2 have such a norm. Llama has a norm of the same name, but it comes after the sum with the
        residual stream.
        """
        return [
            cast(Any, block).post_attention_layernorm if hasattr(block, "post_feedforward_layernorm") else None
            for block in self.blocks
        ]

    @property
    def fitted_length(self) -> int | None:
        """Return the longest sequence, in tokens, that the patterns are defined for; None for no limit."""
        # pruned heads have no pattern and no limit
        lengths = [layer.mixer.T_fit for layer in self.attentions if layer.mixer is not None]
        longest = min(lengths, default=math.inf)
        return None if longest == math.inf else int(longest)

    def set_plan(self, plan: StaticPlan | None) -> None:
        """Make exactly the heads of ``plan`` static; with None, make every head live.

        The weights do not change; see `zero_unused_weights`.

        Raises ValueError if the plan belongs to a model with another number of layers or heads.
        """
        attentions = self.attentions
        if plan is not None:
            require_same_size(plan, len(attentions), attentions[0].num_heads)
        install(cast(Any, attentions), plan)
        self.plan = plan
        self.config.saf_plan = None if plan is None else plan.digest

    def zero_unused_weights(self) -> None:
        """Zero the weights that the plan's heads no longer use. They get no gradient, so training keeps them zero."""
        for layer in self.attentions:
            layer.zero_unused_weights(frees_values=self.plan is not None and self.plan.frees_values)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """Save the model as transformers does, with the file of its plan and a README.md that says how to load it."""
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        num_static = len(self.plan.heads) if self.plan is not None else 0
        write_card(Path(save_directory), model_type=self.config.model_type, num_static=num_static)
        if self.plan is not None:
            self.plan.save(Path(save_directory) / PLAN_FILE)
        else:
            # remove the plan of a model that was saved there before
            (Path(save_directory) / PLAN_FILE).unlink(missing_ok=True)

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """Return the attention mask unchanged; `generate` calls this when its cache has a fixed size.

        transformers would make the matrices of a forward here. The masks of `hf.masks` are not matrices, so the forward
        makes them itself.
        """
        return attention_mask

    def _validate_generated_length(self, generation_config: Any, *args: Any) -> None:
        """Raise ValueError before the first token if the text could become longer than the patterns."""
        super()._validate_generated_length(generation_config, *args)  # type: ignore[misc]
        longest = self.fitted_length
        # the model does not read the last token of a text
        if longest is not None and generation_config.max_length - 1 > longest:
            raise ValueError(
                f"prompt and max_new_tokens make up to {generation_config.max_length} tokens, and the static heads of "
                f"this model are fitted to {longest}: ask for at most {longest + 1} tokens in all, or freeze at a "
                "longer length"
            )

    @classmethod
    def from_pretrained(cls, name: str | Path, *args: Any, **kwargs: Any) -> Any:
        """Load the model as transformers does, with the plan that was saved in its folder.

        Raises ValueError if the model was saved with a plan and the file of that plan is missing or of another plan.
        """
        loaded = super().from_pretrained(name, *args, **kwargs)  # type: ignore[misc]
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        digest = getattr(model.config, "saf_plan", None)
        if digest is not None:
            model.set_plan(_read_plan(name, digest, kwargs))
        elif _has_unnamed_plan(Path(name)):
            raise ValueError(
                f"{name} has {PLAN_FILE}, and its config.json names no plan: static heads would attend uniformly "
                "without it; copy back the config.json that was saved beside the weights"
            )
        return loaded


def load(name: str | Path, plan: StaticPlan | None = None, **kwargs: Any) -> Any:
    """Load a model for calibration or use: an ordinary model without static heads, or one of ours with its plan.

    Args:
        name: a folder, a ``.gguf`` file, or the name of a model on the hub.
        plan: heads to make static in an ordinary model.
        kwargs: arguments of transformers' ``from_pretrained``, such as ``dtype``.

    Raises ValueError if the layout of the model's attention is unknown, weights are missing, or a plan was given and
    the model has one already or has other sizes than the plan's. If only the weights differ from the plan's, a warning
    says so.
    """
    if Path(name).suffix == ".gguf":
        model = _load_gguf(Path(name), kwargs)
    else:
        settings = {key: kwargs[key] for key in ("revision", "cache_dir", "local_files_only") if key in kwargs}
        try:
            config = our_config(AutoConfig.from_pretrained(name, **settings))
        except (ValueError, OSError) as error:
            # the first line of transformers' message says what is wrong
            raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
        kind = model_class(config)
        model = read_complete(name, partial(kind.from_pretrained, name, config=config), kwargs)
    attach(model)
    if plan is not None:
        if model.plan is not None:
            raise ValueError(f"{name} has a plan already; give a plan to the ordinary model")
        note = require_same_model(plan.record.model, model_identity(model), source="the plan", model=str(name))
        if note is not None:
            logging.get_logger(__name__).warning(note)
        model.set_plan(plan)
    return model


def _load_gguf(file: Path, settings: dict[str, Any]) -> Any:
    """Load a .gguf file into our class.

    transformers chooses how to read such a file by the ``model_type``, so the ordinary class reads it. Raises
    ValueError if the file is damaged or of an unknown kind.
    """

    def read(**kwargs: Any) -> Any:
        try:
            return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **kwargs)
        except ImportError:
            raise
        except Exception as error:  # struct.error, KeyError and others for damaged files
            reason = next(iter(str(error).splitlines()), "")
            raise ValueError(
                f"{file} cannot be read as a .gguf file: it is damaged, incomplete or of a kind that transformers does "
                f"not know ({type(error).__name__}: {reason}); copy it again, or give a folder of the model"
            ) from error

    ordinary = read_complete(file, read, settings)
    # transformers has dequantized the weights, so the model can be saved and cast like any other
    if hasattr(ordinary.config, "quantization_config"):
        del ordinary.config.quantization_config
    config = our_config(ordinary.config)
    model = model_class(config)(config)
    model.load_state_dict(ordinary.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = ordinary.generation_config
    return model.eval()


def our_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the same settings as a configuration of our class."""
    if config.model_type.startswith(PREFIX):
        return config
    values = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "architectures")}
    kind: Any = type(config)
    ours: PreTrainedConfig = config_class(kind).from_dict(values)
    return ours


@cache
def config_class(ordinary: Any) -> Any:
    """Return our subclass of a configuration class of transformers."""

    def to_dict(self: Any) -> dict[str, Any]:
        """Return the settings as transformers does; if there is a plan, also the name of our attention function.

        An ordinary class that loads the folder, such as ``LlamaForCausalLM.from_pretrained``, only warns that the
        ``model_type`` is another one. It stops at the name of an attention function that it does not know.
        """
        values: dict[str, Any] = ordinary.to_dict(self)
        return values | ({} if values.get("saf_plan") is None else {"attn_implementation": ATTENTION})

    members = {"model_type": PREFIX + ordinary.model_type, "__module__": __name__, "__doc__": ordinary.__doc__}
    return type(f"SAF{ordinary.__name__}", (ordinary,), members | {"to_dict": to_dict})


def model_class(config: PreTrainedConfig) -> Any:
    """Return the class of causal language models that belongs to one of our configurations."""
    kind: Any = type(config)
    return _model_class(kind)


@cache
def _model_class(ours: Any) -> Any:
    """Return the class of models that belongs to one of our configuration classes."""
    ordinary = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING)[ours.__mro__[1]]
    members = {"config_class": ours, "__module__": __name__, "__doc__": ordinary.__doc__}
    name = f"SAF{ordinary.__name__}"
    # transformers renames the weights of old files; it finds the new names by the class or the model_type
    for theirs, own in ((ordinary.__name__, name), (ours.__mro__[1].model_type, ours.model_type)):
        if (renaming := get_checkpoint_conversion_mapping(theirs)) is not None:
            register_checkpoint_conversion_mapping(own, renaming, overwrite=True)
    return type(name, (StaticHeadsMixin, ordinary), members)


def __getattr__(name: str) -> Any:
    """Return one of our classes by its name: pickle looks classes up in their module, also in other processes."""
    ordinary = getattr(transformers, name.removeprefix("SAF"), None) if name.startswith("SAF") else None
    if isinstance(ordinary, type) and issubclass(ordinary, PreTrainedConfig):
        return config_class(ordinary)
    if isinstance(ordinary, type) and issubclass(ordinary, PreTrainedModel):
        return _model_class(config_class(cast(Any, ordinary).config_class))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _has_unnamed_plan(folder: Path) -> bool:
    """Return whether one of our classes has saved a plan in a folder. The file means nothing to an ordinary model."""
    if not (folder / PLAN_FILE).is_file():
        return False
    model_type = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type", "")
    return str(model_type).startswith(PREFIX)


def _read_plan(name: str | Path, digest: str, settings: dict[str, Any]) -> StaticPlan:
    keys = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
    path = cached_file(
        str(name),
        PLAN_FILE,
        **{key: settings[key] for key in keys if settings.get(key) is not None},
        _raise_exceptions_for_missing_entries=False,
    )
    if path is None:
        raise ValueError(
            f"{name} has no {PLAN_FILE}, and was saved with static heads: without their patterns they cannot attend; "
            "copy the file that was saved beside the weights"
        )
    plan = StaticPlan.load(path)
    if plan.digest != digest:
        raise ValueError(f"{path} is not the plan that {name} was saved with: its config.json names {digest[:12]}")
    return plan


def _require_our_attention(model: Any, args: tuple[object, ...]) -> None:
    if model.config._attn_implementation != ATTENTION:
        raise ValueError(
            f"the attention of this model was set to {model.config._attn_implementation!r}, which knows no static "
            f"heads: set_attn_implementation({ATTENTION!r})"
        )


def register(model_types: tuple[str, ...] = TESTED) -> None:
    """Register our classes of these model types with transformers' Auto classes."""
    for model_type in model_types:
        kind: Any = type(AutoConfig.for_model(model_type))
        ours = config_class(kind)
        AutoConfig.register(ours.model_type, ours, exist_ok=True)
        AutoModelForCausalLM.register(ours, _model_class(ours), exist_ok=True)
