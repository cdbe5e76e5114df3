"""Freezes that cannot be carried out, found by arithmetic before anything is built."""

import re
from collections.abc import Iterator

from saf_titan.config.own_sections import SafSection
from saf_titan.config.schema import RunConfig
from saf_titan.fields.errors import Conflict
from saf_titan.heads.counts import head_count
from saf_titan.saf.fit.dense_memory import dense_excess
from saf_titan.saf.fit.registry import CONTENTS, DENSE_CONTENTS


def freeze_step_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """Yield conflicts between the step of the freeze and the length of the run."""
    saf, steps = config.saf, config.training.steps
    key = "saf.step" if saf.step else "saf.fraction"
    if not 1 <= config.freeze_step <= steps:
        yield Conflict(
            (key, "training.steps"),
            f"would freeze after step {config.freeze_step} of {steps}; it must be after step 1 at the earliest "
            f"and after step {steps} at the latest",
        )
    if not config.freezes_at_end:
        return
    for name in ("matched_seconds", "pattern_lr"):
        if getattr(saf, name):
            yield Conflict(
                (f"saf.{name}", key, "training.steps"),
                "is for training after a freeze, and there is none after the last step; leave it out",
            )
    if saf.schedule != "once":
        yield Conflict(
            ("saf.schedule", key, "training.steps"), 'needs steps after the first freeze; set saf.schedule = "once"'
        )


def frozen_head_conflicts(config: RunConfig) -> Iterator[Conflict]:
    """Yield conflicts between the model, whose flavor must exist, and the number, names and patterns of its heads."""
    saf, shape = config.saf, config.shape
    if config.model.fuse_qkv:
        yield Conflict(
            ("saf.enable", "model.fuse_qkv"),
            "needs attention with separate wq, wk and wv, which can have static heads; set model.fuse_qkv = false",
        )
    yield from _freeze_schedule(config)
    outside = [layer for layer in saf.exclude_layers if not 0 <= layer < shape.num_layers]
    if outside:
        yield Conflict(
            ("saf.exclude_layers", "model.flavor", "model.num_layers"),
            f"names layer {outside[0]}; the layers of the model are 0 to {shape.num_layers - 1}",
        )
        return
    total = shape.total_heads
    open_layers = shape.num_layers - len(set(saf.exclude_layers))
    available = open_layers * min(saf.max_per_layer or shape.num_heads, shape.num_heads)
    wanted = head_count(total, saf.rate, saf.rounding)
    if wanted == 0:
        yield Conflict(
            ("saf.rate", "saf.enable"),
            f"means none of the {total} heads; raise it, or set saf.enable = false",
        )
    yield from _listed_heads(config, wanted)
    if wanted > available and saf.on_shortfall == "error":
        yield Conflict(
            ("saf.rate", "saf.exclude_layers", "saf.max_per_layer", "model.flavor"),
            f"asks for {wanted} of {total} heads, but saf.exclude_layers and saf.max_per_layer leave {available}; "
            'lower the rate, or set saf.on_shortfall = "warn"',
        )


def _freeze_schedule(config: RunConfig) -> Iterator[Conflict]:
    saf, shape = config.saf, config.shape
    total = shape.total_heads
    if saf.schedule == "ramp" and config.freeze_step + saf.ramp_steps >= config.training.steps:
        yield Conflict(
            ("saf.ramp_steps", "saf.step", "saf.fraction", "training.steps"),
            f"would end the ramp at step {config.freeze_step + saf.ramp_steps} of {config.training.steps}; it must end "
            "before the last step",
        )
    for name, value in (("pattern_lr", saf.pattern_lr), ("compensate", saf.compensate)):
        if value and not CONTENTS[saf.content].is_compact:
            yield Conflict(
                (f"saf.{name}", "saf.content"),
                f'needs patterns of two vectors per head, which saf.content = "{saf.content}" does not have',
            )
    if saf.content in DENSE_CONTENTS:
        num_static = head_count(total, saf.rate, saf.rounding)
        excess = dense_excess(saf.content, num_static, config.training.seq_len, saf.max_dense_gib)
        if excess:
            yield Conflict(("saf.content", "saf.max_dense_gib", "saf.rate", "training.seq_len"), excess)
    if saf.max_fit_kl != SafSection().max_fit_kl and not CONTENTS[saf.content].is_fitted:
        yield Conflict(
            ("saf.max_fit_kl", "saf.content"), f'has no effect on saf.content = "{saf.content}", which fits no pattern'
        )
    if saf.pattern_lr and config.training.cuda_graphs:
        yield Conflict(
            ("saf.pattern_lr", "training.cuda_graphs"),
            "changes patterns at every step, but a captured graph keeps the old ones; set training.cuda_graphs = false",
        )


def _listed_heads(config: RunConfig, wanted: int) -> Iterator[Conflict]:
    saf, shape = config.saf, config.shape
    if (saf.selector == "list") != bool(saf.heads):
        yield Conflict(("saf.heads", "saf.selector"), 'and saf.selector = "list" belong together; give both or neither')
        return
    for name in saf.heads:
        match = re.fullmatch(r"L(\d+)H(\d+)", name)
        if match is None or int(match[1]) >= shape.num_layers or int(match[2]) >= shape.num_heads:
            yield Conflict(
                ("saf.heads",),
                f'holds "{name}", which is no head of the model: write L<layer>H<head>, with layers 0 to '
                f"{shape.num_layers - 1} and heads 0 to {shape.num_heads - 1}",
            )
            return
        if int(match[1]) in saf.exclude_layers:
            yield Conflict(
                ("saf.heads", "saf.exclude_layers"), f'holds "{name}", whose layer saf.exclude_layers excludes'
            )
    if len(set(saf.heads)) < len(saf.heads):
        yield Conflict(("saf.heads",), "holds a head twice")
    elif saf.heads and len(saf.heads) != wanted:
        yield Conflict(
            ("saf.heads", "saf.rate"),
            f"holds {len(saf.heads)} heads, but saf.rate = {saf.rate:g} asks for {wanted}; make them agree",
        )
    if saf.heads and saf.schedule != "once":
        yield Conflict(("saf.heads", "saf.schedule"), 'is for one freeze; set saf.schedule = "once"')
