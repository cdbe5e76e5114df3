"""Combinations of values that cannot make a run, found by arithmetic before anything is built."""

from collections.abc import Iterator

from saf_titan.config.freeze_checks import freeze_step_conflicts, frozen_head_conflicts
from saf_titan.config.generated_checks import generated_data_conflicts
from saf_titan.config.host_sections import CheckpointSection
from saf_titan.config.own_sections import CircuitsSection, ModelSection
from saf_titan.config.schema import RunConfig
from saf_titan.config.shapes import SHAPES
from saf_titan.fields.errors import Conflict, nearest


def conflicts(config: RunConfig, given: frozenset[str]) -> Iterator[Conflict]:
    """Yield all conflicts of a run; `given` are the dotted keys that the user set."""
    yield from _training(config)
    yield from _schedule(config)
    yield from _checkpoint(config)
    yield from generated_data_conflicts(config)
    if config.saf.step and {"saf.step", "saf.fraction"} <= given:
        yield Conflict(("saf.step", "saf.fraction"), "cannot be given together with saf.fraction; give one of the two")
    elif config.saf.enable:
        yield from freeze_step_conflicts(config)
    flavors = SHAPES[config.model.family]
    if config.model.flavor not in flavors:
        match = nearest(config.model.flavor, flavors)
        yield Conflict(
            ("model.flavor", "model.family"),
            f"is no flavor of {config.model.family}, which has {', '.join(flavors)}"
            + (f"; did you mean {match}?" if match else ""),
        )
        return
    yield from _model(config)
    yield from _circuits(config)
    yield from _parallelism(config)
    if config.saf.enable:
        yield from frozen_head_conflicts(config)


def _model(config: RunConfig) -> Iterator[Conflict]:
    model, shape = config.model, config.shape
    if model.family != "gpt":
        for name in (
            "num_heads",
            "num_kv_heads",
            "dim",
            "position",
            "rope_theta",
            "init_std",
            "norm_eps",
            "bias",
            "gelu",
        ):
            if getattr(model, name) != getattr(ModelSection(), name):
                yield Conflict(
                    (f"model.{name}", "model.family"),
                    f"belongs to the gpt family; {model.family} flavors are fixed: leave it out, or set "
                    'model.family = "gpt"',
                )
        most = SHAPES[model.family][model.flavor].num_layers
        if model.num_layers > most:
            yield Conflict(("model.num_layers", "model.flavor"), f"exceeds the {most} layers of the flavor")
        return
    if model.fuse_qkv:
        yield Conflict(
            ("model.fuse_qkv", "model.family"), "is for the decoders of torchtitan; gpt has separate projections"
        )
    if shape.num_heads % shape.num_kv_heads:
        yield Conflict(
            ("model.num_kv_heads", "model.num_heads", "model.flavor"),
            f"must divide the {shape.num_heads} query heads of a layer",
        )
    if shape.dim % shape.num_heads:
        yield Conflict(
            ("model.dim" if model.dim else "model.num_heads", "model.dim", "model.num_heads", "model.flavor"),
            f"a width of {shape.dim} does not divide into {shape.num_heads} heads",
        )
    elif model.position == "rope" and shape.dim // shape.num_heads % 2:
        yield Conflict(
            ("model.position", "model.dim", "model.num_heads", "model.flavor"),
            f"rotary positions need an even head width, not {shape.dim} / {shape.num_heads} = "
            f"{shape.dim // shape.num_heads}",
        )


def _training(config: RunConfig) -> Iterator[Conflict]:
    training, optimizer = config.training, config.optimizer
    if training.global_batch_size > 0 and training.global_batch_size % training.local_batch_size:
        yield Conflict(
            ("training.global_batch_size", "training.local_batch_size"),
            f"must be a multiple of training.local_batch_size = {training.local_batch_size}",
        )
    if training.mixed_precision_param == "bfloat16_autocast":
        if config.model.family != "gpt":
            yield Conflict(
                ("training.mixed_precision_param", "model.family"),
                'is for the gpt family, whose residual stream it keeps in float32; set it to "bfloat16"',
            )
        if training.dtype != "float32":
            yield Conflict(
                ("training.mixed_precision_param", "training.dtype"),
                'keeps the residual stream in float32, which training.dtype = "bfloat16" does not; set one of the two',
            )
    if config.compile.enable and not config.compile.components:
        yield Conflict(
            ("compile.components", "compile.enable"), "names nothing to compile; set compile.enable = false instead"
        )
    if optimizer.name == "SGD" and optimizer.implementation == "fused_opt_states_bf16":
        yield Conflict(
            ("optimizer.implementation", "optimizer.name"),
            'is for AdamW\'s moments; for SGD use "fused", "foreach" or "for-loop"',
        )


def _schedule(config: RunConfig) -> Iterator[Conflict]:
    scheduler, steps = config.lr_scheduler, config.training.steps
    if 0 < scheduler.total_steps < steps:
        yield Conflict(
            ("lr_scheduler.total_steps", "training.steps"),
            f"the schedule would end before the run's {steps} steps; use 0 for the length of the run",
        )
        return
    length = config.schedule_steps
    keys = ("lr_scheduler.warmup_steps", "training.steps", "lr_scheduler.total_steps")
    if scheduler.warmup_steps > length:
        yield Conflict(keys, f"is longer than the schedule of {length} steps; at most {length}")
    elif scheduler.decay_ratio < 1 and scheduler.warmup_steps + round(scheduler.decay_ratio * length) > length:
        yield Conflict(
            ("lr_scheduler.decay_ratio", *keys),
            f"its {round(scheduler.decay_ratio * length)} steps and the warmup's {scheduler.warmup_steps} "
            f"exceed the schedule of {length} steps; 1.0 decays in all steps after the warmup",
        )


def _circuits(config: RunConfig) -> Iterator[Conflict]:
    circuits = config.circuits
    if config.scales_qk and config.model.fuse_qkv:
        key = "qk_lr_ratio" if circuits.qk_lr_ratio != 1.0 else "qk_lr_schedule"
        yield Conflict(
            (f"circuits.{key}", "circuits.qk_lr_ratio", "circuits.qk_lr_schedule", "model.fuse_qkv"),
            "a fused wqkv is one parameter, so its Q and K rows cannot have another learning rate than V; set "
            "model.fuse_qkv = false",
        )
    for group in circuits.group:
        if problem := group.problem(config.shape.num_layers):
            yield Conflict(("circuits.group", "model.flavor", "model.num_layers"), f"{group.name}: {problem}")
        elif config.model.fuse_qkv and group.match in ("qk", "ov"):
            yield Conflict(
                ("circuits.group", "model.fuse_qkv"),
                f"{group.name}: a fused wqkv is one parameter; set model.fuse_qkv = false",
            )
    ramp_keys = ("circuits.qk_lr_ramp_steps", "circuits.qk_lr_schedule")
    if circuits.qk_lr_schedule == "constant":
        for name in ("qk_lr_ratio_end", "qk_lr_hold_steps", "qk_lr_ramp_steps"):
            if getattr(circuits, name) != getattr(CircuitsSection(), name):
                yield Conflict(
                    (f"circuits.{name}", "circuits.qk_lr_schedule"),
                    'has no effect on a constant ratio; set circuits.qk_lr_schedule = "linear" or "hold_then_ramp"',
                )
    elif circuits.qk_lr_ramp_steps == 0:
        yield Conflict(ramp_keys, f"must be at least 1 for the schedule {circuits.qk_lr_schedule}")
    if circuits.qk_lr_schedule == "linear" and circuits.qk_lr_hold_steps:
        yield Conflict(
            ("circuits.qk_lr_hold_steps", "circuits.qk_lr_schedule"),
            'has no effect on a linear ramp; set circuits.qk_lr_schedule = "hold_then_ramp"',
        )
    last = config.shape.num_layers - 1
    if circuits.layers and not (len(circuits.layers) == 2 and 0 <= circuits.layers[0] <= circuits.layers[1] <= last):
        yield Conflict(
            ("circuits.layers", "model.flavor", "model.num_layers"),
            f"must be [first, last] with 0 <= first <= last <= {last}, or [] for all layers",
        )


def _parallelism(config: RunConfig) -> Iterator[Conflict]:
    shape, parallelism = config.shape, config.parallelism
    degrees = {
        "tensor": parallelism.tensor_parallel_degree,
        "pipeline": parallelism.pipeline_parallel_degree,
        "context": parallelism.context_parallel_degree,
    }
    if not config.model.fuse_qkv:
        for name, degree in degrees.items():
            if degree > 1:
                yield Conflict(
                    (f"parallelism.{name}_parallel_degree", "model.family", "model.fuse_qkv"),
                    "must be 1: a model that can be frozen has data parallelism only; use the data_parallel degrees"
                    + (", or set model.fuse_qkv = true for torchtitan's model" if config.model.family != "gpt" else ""),
                )
        return
    if shape.num_kv_heads % degrees["tensor"]:
        yield Conflict(
            ("parallelism.tensor_parallel_degree", "model.flavor"),
            f"must divide the {shape.num_kv_heads} kv heads of a layer",
        )
    for name in ("tensor", "context"):
        if config.training.seq_len % degrees[name]:
            yield Conflict(
                ("training.seq_len", f"parallelism.{name}_parallel_degree"),
                f"must be a multiple of parallelism.{name}_parallel_degree = {degrees[name]}",
            )
    if degrees["pipeline"] > 1 and shape.tied:
        yield Conflict(
            ("parallelism.pipeline_parallel_degree", "model.flavor"),
            "must be 1: this flavor ties the output matrix to the embedding, and the two would be in different stages",
        )
    elif degrees["pipeline"] > shape.num_layers:
        yield Conflict(
            ("parallelism.pipeline_parallel_degree", "model.flavor"),
            f"exceeds the {shape.num_layers} layers of the model",
        )
    if degrees["pipeline"] > 1 and config.training.cuda_graphs:
        yield Conflict(
            ("training.cuda_graphs", "parallelism.pipeline_parallel_degree"),
            "must be false with pipeline parallelism",
        )


def _checkpoint(config: RunConfig) -> Iterator[Conflict]:
    if config.checkpoint.initial_load_model_only and not config.checkpoint.initial_load_path:
        yield Conflict(
            ("checkpoint.initial_load_model_only", "checkpoint.initial_load_path"),
            "has no effect without checkpoint.initial_load_path, which names the checkpoint to take the weights from",
        )
    outside = [step for step in config.checkpoint.keep_steps if not 1 <= step <= config.training.steps]
    if outside:
        yield Conflict(
            ("checkpoint.keep_steps", "training.steps"),
            f"names step {outside[0]}; the steps of the run are 1 to {config.training.steps}",
        )
    if config.checkpoint.enable:
        return
    if config.saf.keep_checkpoint:
        yield Conflict(
            ("saf.keep_checkpoint", "checkpoint.enable"),
            "has no effect while checkpoint.enable = false, which saves nothing",
        )
    for name in ("load_step", "initial_load_path", "keep_steps"):
        if getattr(config.checkpoint, name) != getattr(CheckpointSection(), name):
            yield Conflict(
                (f"checkpoint.{name}", "checkpoint.enable"),
                "has no effect while checkpoint.enable = false, which neither saves nor loads",
            )
