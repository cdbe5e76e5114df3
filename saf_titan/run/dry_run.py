"""The text of ``--dry-run``: a description of a run, made without a process group or weights."""

from __future__ import annotations

from collections.abc import Sequence

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

import torch
from torch import nn
from torchtitan.components.checkpointer.utils import canonical_fqn

from saf_titan.circuits.groups import ParameterGroup, parameter_groups
from saf_titan.config import RunConfig, calibration_sequences, check_world_size, data_parallel_size, to_toml
from saf_titan.config.effects import effect_notes
from saf_titan.heads.counts import head_count
from saf_titan.models import model_spec
from saf_titan.models.flops import training_flops_per_token
from saf_titan.run.backends import require_backend
from saf_titan.run.calibration_data import rounding_line
from saf_titan.run.precision import compute_precision, precision_line, uses_autocast
from saf_titan.saf.fit.dense_memory import dense_bytes
from saf_titan.saf.fit.registry import DENSE_CONTENTS

_GIB = 1024**3


def describe(run: RunConfig, world_size: int = 1, *, data_lines: Sequence[str] = ()) -> str:
    """Return a run as text: model, groups, tokens, schedule, freeze and memory on ``world_size`` ranks.

    Raises ConfigError if the run cannot have ``world_size`` ranks or its attention backend cannot run here.

    data_lines: lines about the data, see :func:`saf_titan.data.checks.inspect_data`.
    """
    check_world_size(run, world_size)
    require_backend(run, compat.device_type())
    with torch.device("meta"):
        model = model_spec(run.model, run.shape, max_seq_len=run.max_seq_len).model.build()
    parameters = [(canonical_fqn(name), parameter) for name, parameter in model.named_parameters()]
    groups = parameter_groups(parameters, run.circuit_groups)
    blocks = [
        ("Configuration", to_toml(run).rstrip().splitlines()),
        ("Model", _model_lines(run, model)),
        ("Parameter groups", _group_lines(run, groups)),
        ("Tokens", _token_lines(run, world_size)),
        ("Data", [*data_lines] or ["not checked"]),
        ("Schedule", _schedule_lines(run)),
        ("Freeze", _freeze_lines(run, world_size)),
        ("Checkpoints", _checkpoint_lines(run)),
        (f"Memory per rank of {world_size} (estimate)", _memory_lines(run, model, world_size)),
    ]
    if notes := effect_notes(run):
        blocks.insert(1, ("Keys without effect", notes))
    return "\n\n".join("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in blocks)


def _model_lines(run: RunConfig, model: nn.Module) -> list[str]:
    total = sum(parameter.numel() for parameter in model.parameters())
    embeddings = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    shape, flops = run.shape, training_flops_per_token(model, run.training.seq_len)
    groups = f" on {shape.num_kv_heads} kv heads" if shape.num_kv_heads < shape.num_heads else ""
    return [
        f"{run.model.family} {run.model.flavor}: {shape.num_layers} layers, {shape.num_heads} heads of "
        f"{shape.head_dim}{groups}, width {shape.dim}, vocabulary {shape.vocab_size:,}",
        f"{total:,} parameters, {total - sum(embeddings.values()):,} without embeddings",
        f"{flops / 1e6:,.1f} MFLOP per token (forward and backward, all heads live)",
        precision_line(run),
    ]


def _group_lines(run: RunConfig, groups: list[ParameterGroup]) -> list[str]:
    lines = [f"{'group':<10} {'tensors':>8} {'parameters':>14} {'peak lr':>10}"]
    for group in groups:
        rate = run.optimizer.lr * (group.rule.factor if group.rule else 1.0)
        lines.append(f"{group.name:<10} {len(group.names):>8} {group.num_elements:>14,} {rate:>10.3g}")
    return lines


def _token_lines(run: RunConfig, world_size: int) -> list[str]:
    training = run.training
    ranks = data_parallel_size(run, world_size)
    tokens = run.tokens_per_step(ranks)
    sequences = tokens // training.seq_len
    num_microbatches = sequences // (training.local_batch_size * ranks)
    accumulation = f"{num_microbatches} microbatches of {training.local_batch_size} x {ranks} ranks"
    return [
        f"{sequences} sequences of {training.seq_len:,} = {tokens:,} tokens per step; {accumulation}",
        f"{tokens * training.steps:,} tokens in {training.steps:,} steps from {run.data_source}",
    ]


def _schedule_lines(run: RunConfig) -> list[str]:
    schedule = run.lr_scheduler
    lines = [f"warm-up over {schedule.warmup_steps:,} of {run.schedule_steps:,} steps, peak {run.optimizer.lr:g}"]
    if schedule.decay_ratio:
        share = f" over the last {schedule.decay_ratio:.0%}" if schedule.decay_ratio < 1 else ""
        lines.append(f"{schedule.decay_type} decay{share} to {run.optimizer.lr * schedule.min_lr_factor:g}")
    for rule in run.circuit_groups:
        course = "" if rule.schedule == "constant" else f", {rule.schedule} to {rule.factor_end:g}"
        lines.append(f"{rule.name}: factor {rule.factor:g}{course}")
    return lines


def _freeze_lines(run: RunConfig, world_size: int) -> list[str]:
    if not run.saf.enable:
        return ["none ([saf] enable = false)"]
    ranks = data_parallel_size(run, world_size)
    sequences = calibration_sequences(run, ranks)
    num_heads = run.shape.total_heads
    count = head_count(num_heads, run.saf.rate, run.saf.rounding)
    when = {
        "once": f"after step {run.freeze_step:,}",
        "ramp": f"every {run.saf.interval:,} steps from {run.freeze_step:,}, for {run.saf.ramp_steps:,} steps",
        "loss_budget": f"every {run.saf.interval:,} steps from {run.freeze_step:,}, {run.saf.increment:.1%} at a time "
        f"while the held-out loss rises by less than {run.saf.loss_budget:.1%} in all, up to",
    }[run.saf.schedule]
    lines = [
        f"{when}: {count} of {num_heads} heads become static (rate {run.saf.rate:g}, selector "
        f"{run.saf.selector}, content {run.saf.content})",
        f"calibrated on {sequences} {'training' if run.saf.calibration_split == 'train' else 'held-out'} sequences",
    ]
    rounding = rounding_line(run, ranks)
    if rounding is not None:
        lines.append(rounding)
    share = sequences // ranks
    if share > run.calibration_batch_size:
        shape = run.shape
        numbers = shape.num_layers * (shape.num_heads + shape.num_kv_heads) * shape.head_dim * run.training.seq_len
        size = share * numbers * _activation_bytes(run) / _GIB
        lines.append(
            f"each rank calibrates in several batches and so keeps the queries and keys of all layers, {size:.2f} GiB "
            f"(none with saf.calibration_batch_size = {share})"
        )
    if run.saf.content in DENSE_CONTENTS:
        size = dense_bytes(count, run.training.seq_len) / _GIB
        lines.append(f"patterns are T x T matrices, {size:.2f} GiB, which every rank holds in the layers and the plan")
    if run.saf.matched_seconds:
        lines.append(f"the run ends after {run.saf.matched_seconds:g} s instead of {run.training.steps:,} steps")
    return lines


def _checkpoint_lines(run: RunConfig) -> list[str]:
    checkpoint = run.checkpoint
    if not checkpoint.enable:
        return ["none (checkpoint.enable = false)"]
    kept = f"the newest {checkpoint.keep_latest_k} are kept" if checkpoint.keep_latest_k else "all are kept"
    lines = [f"every {checkpoint.interval:,} steps, at a freeze and at the end; {kept}"]
    if checkpoint.keep_steps:
        lines.append(f"kept for good: {', '.join(f'step {step:,}' for step in sorted(set(checkpoint.keep_steps)))}")
    if run.saf.enable and run.saf.keep_checkpoint:
        lines.append("kept for good: the checkpoint just before each freeze")
    return lines


def _memory_lines(run: RunConfig, model: nn.Module, world_size: int) -> list[str]:
    """Return the memory of a rank, as lines.

    Weights, gradients and moments are exact. Activations are estimated by Korthikanti et al. (arXiv 2205.05198), eq. 2,
    for attention that does not keep its scores, in the precision of the run.
    """
    training, shape = run.training, run.shape
    total = sum(parameter.numel() for parameter in model.parameters())
    bytes_each = 4 if training.dtype == "float32" else 2
    moments = 2 if run.optimizer.name == "AdamW" else 1
    shards = max(1, world_size // run.parallelism.data_parallel_replicate_degree)
    state = total * bytes_each * (2 + moments) / shards
    width = _activation_bytes(run)
    tokens = training.local_batch_size * training.seq_len
    per_layer = {"none": 17, "selective": 8, "full": 1}[run.activation_checkpoint.mode]
    activations = tokens * shape.dim * shape.num_layers * per_layer * width
    logits = tokens * shape.vocab_size * (4 + 4 + width)
    return [
        f"weights, gradients, moments {state / _GIB:8.2f} GiB",
        f"activations                 {activations / _GIB:8.2f} GiB",
        f"logits and their gradient   {logits / _GIB:8.2f} GiB",
        f"sum                         {(state + activations + logits) / _GIB:8.2f} GiB",
    ]


def _activation_bytes(run: RunConfig) -> int:
    if uses_autocast(run):
        # about half of what is kept is in float32
        return 3
    return 2 if compute_precision(run) == "bfloat16" else 4
