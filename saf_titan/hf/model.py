"""Models of transformers that hold a plan: own classes with an own ``model_type``, so that none loads without it.

Static heads have zeros for queries and keys. Stock transformers would load such weights and attend uniformly without a
word; the ``model_type`` ``saf_titan_llama`` makes it stop and name this package instead. Each class is a subclass of
the ordinary one, so everything that works with that works with it: generation, pipelines, ``Trainer``, PEFT.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from logging import LogRecord
from pathlib import Path
from typing import Any, cast

import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import cached_file, logging

from saf_titan.hf.attention import ATTENTION
from saf_titan.hf.card import write_card
from saf_titan.hf.identity import PREFIX, model_identity, require_same_size
from saf_titan.hf.layer import HeadsOfLayer, attach
from saf_titan.saf.calibrate.model_identity import require_same_model
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.plan import StaticPlan

PLAN_FILE = "saf_plan.safetensors"
"""The plan of a saved model, beside its weights; `python -m saf_titan.saf show` reads it."""

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
"""The model types of transformers that tests compare with a float64 reference. `load` takes others that have the same
parts; to register one with the Auto classes, name it here, which also gives it those tests."""


class StaticHeadsMixin:
    """What our classes add to those of transformers: the plan, and care that nothing runs without it."""

    config: Any
    plan: StaticPlan | None
    _can_compile_fullgraph = False

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self.plan = None
        # the decoder itself, which everything runs: it may also be called without its output head
        cast(Any, self).base_model.register_forward_pre_hook(_require_our_attention)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        """Every model of these classes attends by our function; another one, asked for by name, is refused."""
        if attn_implementation not in (None, ATTENTION):
            raise ValueError(
                f"attn_implementation = {attn_implementation!r}: a model with static heads attends by {ATTENTION!r} "
                "alone, which uses torch's fused attention for live heads; leave the argument out"
            )
        return ATTENTION

    @property
    def attentions(self) -> list[HeadsOfLayer]:
        """The attention layers, in order, for the functions of `saf_titan.saf`."""
        return attach(cast(nn.Module, self))

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks, in order."""
        model = cast(nn.Module, self)
        ours = {id(layer.module) for layer in self.attentions}
        paths = [name for name, module in model.named_modules() if id(module) in ours]
        return [model.get_submodule(path.rpartition(".")[0]) for path in paths]

    @property
    def attention_norms(self) -> list[nn.Module | None]:
        """For each layer the RMS norm between its attention and the residual stream, or None.

        Gemma and OLMo 2 have one; Llama's norm of the same name comes behind the sum with the residual stream.
        """
        return [
            cast(Any, block).post_attention_layernorm if hasattr(block, "post_feedforward_layernorm") else None
            for block in self.blocks
        ]

    @property
    def fitted_length(self) -> int | None:
        """The longest sequence that the patterns of the static heads are defined for; None for no limit."""
        # a pruned head has no pattern, and bears any length
        lengths = [layer.mixer.T_fit for layer in self.attentions if layer.mixer is not None]
        longest = min(lengths, default=math.inf)
        return None if longest == math.inf else int(longest)

    def set_plan(self, plan: StaticPlan | None) -> None:
        """Make exactly the heads of ``plan`` static, None: no head. Weights stay; see `zero_unused_weights`.

        Raises ValueError for a plan of a model of another size.
        """
        attentions = self.attentions
        if plan is not None:
            require_same_size(plan, len(attentions), attentions[0].num_heads)
        install(cast(Any, attentions), plan)
        self.plan = plan
        self.config.saf_plan = None if plan is None else plan.digest

    def zero_unused_weights(self) -> None:
        """Zero the weights that the plan's heads no longer use. They then stay zero in training, as in our trainer."""
        for layer in self.attentions:
            layer.zero_unused_weights(frees_values=self.plan is not None and self.plan.frees_values)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """As in transformers, with the plan beside the weights, and a README.md that tells how to load them."""
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        num_static = len(self.plan.heads) if self.plan is not None else 0
        write_card(Path(save_directory), model_type=self.config.model_type, num_static=num_static)
        if self.plan is not None:
            self.plan.save(Path(save_directory) / PLAN_FILE)
        else:
            # of a model that was saved there before
            (Path(save_directory) / PLAN_FILE).unlink(missing_ok=True)

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """What `generate` with a cache of fixed size asks for: the padding as it is, from which a forward makes masks.

        The masks of `hf.masks` are no matrices, so that they cannot be made ahead of the forward.
        """
        return attention_mask

    def _validate_generated_length(self, generation_config: Any, *args: Any) -> None:
        """Before the first token: ValueError if the text could become longer than the patterns."""
        super()._validate_generated_length(generation_config, *args)  # type: ignore[misc]
        longest = self.fitted_length
        # the last token is written and not read
        if longest is not None and generation_config.max_length - 1 > longest:
            raise ValueError(
                f"prompt and max_new_tokens make up to {generation_config.max_length} tokens, and the static heads of "
                f"this model are fitted to {longest}: ask for at most {longest + 1} tokens in all, or freeze at a "
                "longer length"
            )

    @classmethod
    def from_pretrained(cls, name: str | Path, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, and the plan that was saved beside the weights.

        Raises ValueError if the model was saved with a plan and the plan is not there or another one.
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
    """Load a model for calibration or use: ordinary ones without static heads, ours with their plan.

    Args:
        name: a folder, a ``.gguf`` file, or a name of the hub.
        plan: makes its heads static in an ordinary model.
        kwargs: those of transformers' ``from_pretrained``, such as ``dtype``.

    Raises ValueError if the model has no attention that we can reach, lacks weights, has a plan already, or is another
    one than that of the plan; if only its weights differ, a warning says so.
    """
    if Path(name).suffix == ".gguf":
        model = _load_gguf(Path(name), kwargs)
    else:
        settings = {key: kwargs[key] for key in ("revision", "cache_dir", "local_files_only") if key in kwargs}
        try:
            config = our_config(AutoConfig.from_pretrained(name, **settings))
        except (ValueError, OSError) as error:
            # a paragraph, which begins with what is wrong
            raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
        kind = model_class(config)
        model = _complete(name, partial(kind.from_pretrained, name, config=config), kwargs)
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
    """The weights of a .gguf file in our class, read by the ordinary one: transformers reads them by the model_type."""
    read = partial(AutoModelForCausalLM.from_pretrained, file.parent, gguf_file=file.name)
    ordinary = _complete(file, read, settings)
    # the weights are plain numbers now: saved as they are, and cast like any others
    if hasattr(ordinary.config, "quantization_config"):
        del ordinary.config.quantization_config
    config = our_config(ordinary.config)
    model = model_class(config)(config)
    model.load_state_dict(ordinary.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = ordinary.generation_config
    return model.eval()


def _complete(name: str | Path, read: Callable[..., Any], settings: dict[str, Any]) -> Any:
    """The model that ``read`` loads, with transformers' ``settings``, and a note of weights that it has no place for.

    Raises ValueError for a damaged file, and where weights are missing or misshapen, which transformers would fill with
    noise.
    """
    logger = logging.get_logger("transformers.modeling_utils")
    logger.addFilter(_is_no_load_report)
    try:
        model, found = read(**{**settings, "output_loading_info": True, "ignore_mismatched_sizes": True})
    except SafetensorError as error:
        raise ValueError(f"{name}: the weights are damaged or cut short ({error}); copy the files again") from error
    finally:
        logger.removeFilter(_is_no_load_report)
    # a misshapen weight comes as its name and both shapes
    misshapen = [key if isinstance(key, str) else key[0] for key in found["mismatched_keys"]]
    if lacking := sorted([*found["missing_keys"], *misshapen]):
        raise ValueError(
            f"{name} lacks weights of {type(model).__name__}, or has them in another shape: {_some(lacking)}; its "
            "config.json must be that of its weights"
        )
    if unused := sorted(found["unexpected_keys"]):
        logger.warning(f"{name} has weights that {type(model).__name__} does not use: {_some(unused)}")
    return model


def _is_no_load_report(record: LogRecord) -> bool:
    """Keeps back the report of the weights, a table of many lines before the one that says what is wrong."""
    return "LOAD REPORT" not in record.getMessage()


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def our_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same settings as a configuration of our class."""
    if config.model_type.startswith(PREFIX):
        return config
    values = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "architectures")}
    kind: Any = type(config)
    ours: PreTrainedConfig = config_class(kind).from_dict(values)
    return ours


@cache
def config_class(ordinary: Any) -> Any:
    """Our subclass of a configuration of transformers."""

    def to_dict(self: Any) -> dict[str, Any]:
        """As in transformers. With a plan, the saved settings name our attention.

        An ordinary class that is given the folder by its own name, such as ``LlamaForCausalLM``, only warns of the
        ``model_type``; but it stops at the name of an attention that it does not know.
        """
        values: dict[str, Any] = ordinary.to_dict(self)
        return values | ({} if values.get("saf_plan") is None else {"attn_implementation": ATTENTION})

    members = {"model_type": PREFIX + ordinary.model_type, "__module__": __name__, "__doc__": ordinary.__doc__}
    return type(f"SAF{ordinary.__name__}", (ordinary,), members | {"to_dict": to_dict})


def model_class(config: PreTrainedConfig) -> Any:
    """The causal language model that belongs to a configuration of ours."""
    kind: Any = type(config)
    return _model_class(kind)


@cache
def _model_class(ours: Any) -> Any:
    """Our subclass of the causal language model that belongs to one of our configurations."""
    ordinary = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING)[ours.__mro__[1]]
    members = {"config_class": ours, "__module__": __name__, "__doc__": ordinary.__doc__}
    name = f"SAF{ordinary.__name__}"
    # transformers renames weights of old files by the name of the class or the model_type
    for theirs, own in ((ordinary.__name__, name), (ours.__mro__[1].model_type, ours.model_type)):
        if (renaming := get_checkpoint_conversion_mapping(theirs)) is not None:
            register_checkpoint_conversion_mapping(own, renaming, overwrite=True)
    return type(name, (StaticHeadsMixin, ordinary), members)


def __getattr__(name: str) -> Any:
    """Make a class by its name: pickle looks classes up in their module, in another process too."""
    ordinary = getattr(transformers, name.removeprefix("SAF"), None) if name.startswith("SAF") else None
    if isinstance(ordinary, type) and issubclass(ordinary, PreTrainedConfig):
        return config_class(ordinary)
    if isinstance(ordinary, type) and issubclass(ordinary, PreTrainedModel):
        return _model_class(config_class(cast(Any, ordinary).config_class))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _has_unnamed_plan(folder: Path) -> bool:
    """Whether a folder was saved by one of our classes with a plan. An ordinary model may lie beside any file."""
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
    """Make transformers' Auto classes know our classes."""
    for model_type in model_types:
        kind: Any = type(AutoConfig.for_model(model_type))
        ours = config_class(kind)
        AutoConfig.register(ours.model_type, ours, exist_ok=True)
        AutoModelForCausalLM.register(ours, _model_class(ours), exist_ok=True)
