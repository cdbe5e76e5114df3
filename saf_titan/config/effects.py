"""Keys whose value changes nothing beside the other values of a run, so that a run can say so at its start.

A value that contradicts another one is refused (`checks.py`). A value that is merely not read is no contradiction: a
study switches the freeze off in one arm and keeps the keys of its base configuration. Such keys are named in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from saf_titan.config.own_sections import SafSection
from saf_titan.config.schema import RunConfig
from saf_titan.fields.convert import field_types


class Rule(NamedTuple):
    """Keys that a run may not read."""

    keys: tuple[str, ...]
    """Dotted."""
    is_idle: Callable[[RunConfig], bool]
    """Whether the values of the keys change nothing."""
    reason: str
    """Why they do not, as the end of a sentence."""


_READ_WITHOUT_FREEZE = ("enable", "matched_seconds", "calibration_seed")
"""Keys of [saf] that a run reads while saf.enable = false: calibration_seed picks the sequences of circuits.metrics."""

RULES: tuple[Rule, ...] = (
    Rule(("model.rope_theta",), lambda run: run.model.position == "learned", 'on model.position = "learned"'),
    Rule(
        ("model.attention_backend",),
        lambda run: run.model.fuse_qkv,
        "while model.fuse_qkv = true, whose attention is torchtitan's",
    ),
    Rule(
        ("data.path", "data.shuffle"),
        lambda run: run.data.is_generated,
        "on generated sequences, which are not read from files and are new at every step",
    ),
    Rule(
        ("validator.tokens",),
        lambda run: run.data.has_answers and run.validator.enable,
        'unless data.kind = "tokens"; validator.examples tells how many sequences to validate on',
    ),
    Rule(
        ("optimizer.beta1", "optimizer.beta2", "optimizer.eps"),
        lambda run: run.optimizer.name != "AdamW",
        'with optimizer.name = "SGD"',
    ),
    Rule(("optimizer.momentum",), lambda run: run.optimizer.name != "SGD", 'with optimizer.name = "AdamW"'),
    Rule(
        ("lr_scheduler.decay_type", "lr_scheduler.min_lr_factor"),
        lambda run: run.lr_scheduler.decay_ratio == 0,
        "while lr_scheduler.decay_ratio = 0, under which nothing decays",
    ),
    Rule(
        ("circuits.layers",),
        lambda run: not run.scales_qk,
        "beside a circuits.qk_lr_ratio of 1, which scales no layer",
    ),
    Rule(
        ("circuits.scale_weight_decay",),
        lambda run: not run.circuit_groups or run.optimizer.weight_decay == 0,
        "without a factor on the learning rate of a circuit, or without weight decay",
    ),
    Rule(
        ("circuits.metrics_sequences",),
        lambda run: run.circuits.metrics_freq == 0,
        "while circuits.metrics_freq = 0, under which nothing is measured",
    ),
    Rule(
        ("circuits.metrics_freq", "circuits.metrics_sequences"),
        lambda run: run.model.fuse_qkv,
        "while model.fuse_qkv = true: the circuits of such a model are one matrix",
    ),
    Rule(
        tuple(f"saf.{name}" for name in field_types(SafSection) if name not in _READ_WITHOUT_FREEZE),
        lambda run: not run.saf.enable,
        "while saf.enable = false",
    ),
    Rule(
        ("saf.calibration_seed",),
        lambda run: not run.saf.enable and (run.circuits.metrics_freq == 0 or run.model.fuse_qkv),
        "while neither a freeze nor circuits.metrics_freq measures attention",
    ),
    Rule(("saf.interval",), lambda run: run.saf.schedule == "once", 'with saf.schedule = "once", which freezes once'),
    Rule(("saf.ramp_steps",), lambda run: run.saf.schedule != "ramp", 'without saf.schedule = "ramp"'),
    Rule(
        ("saf.increment", "saf.loss_budget", "saf.max_failures"),
        lambda run: run.saf.schedule != "loss_budget",
        'without saf.schedule = "loss_budget"',
    ),
    Rule(
        ("saf.keep_checkpoint",),
        lambda run: run.checkpoint.keep_latest_k == 0,
        "while checkpoint.keep_latest_k = 0, under which every checkpoint is kept",
    ),
    Rule(
        ("validator.freq", "validator.tokens", "validator.examples", "validator.pairs"),
        lambda run: not run.validator.enable,
        "while validator.enable = false",
    ),
    Rule(
        ("checkpoint.folder", "checkpoint.interval", "checkpoint.keep_latest_k", "checkpoint.async_mode"),
        lambda run: not run.checkpoint.enable,
        "while checkpoint.enable = false",
    ),
    Rule(
        ("metrics.save_tb_folder",),
        lambda run: not run.metrics.enable_tensorboard,
        "while metrics.enable_tensorboard = false",
    ),
    Rule(
        ("profiler.profile_freq", "profiler.save_traces_folder"),
        lambda run: not run.profiler.enable_profiling,
        "while profiler.enable_profiling = false",
    ),
    Rule(("compile.components", "compile.backend"), lambda run: not run.compile.enable, "while compile.enable = false"),
    Rule(("report.heads",), lambda run: not run.report.enable, "while report.enable = false"),
)


def effect_notes(run: RunConfig) -> list[str]:
    """Return one sentence for each reason why keys with another value than their default have no effect on the run.

    run: a configuration without conflicts.
    """
    notes, seen = [], set[str]()
    for keys, reason in _idle_keys(run):
        given = [key for key in keys if key not in seen and _value(run, key) != _value(RunConfig(), key)]
        seen.update(given)
        if given:
            notes.append(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect {reason}")
    return notes


def _idle_keys(run: RunConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield dotted keys that change nothing, each time with the reason as the end of a sentence."""
    for rule in RULES:
        if rule.is_idle(run):
            yield rule.keys, rule.reason
    for names, reason in run.saf.without_effect():
        yield tuple(f"saf.{name}" for name in names), reason


def _value(run: RunConfig, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(run, section), name)
