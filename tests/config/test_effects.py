"""Keys that a run does not read are named, each with the reason; those that it reads are not.

Covers config/effects.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config import RunConfig, load_config
from saf_titan.config.effects import RULES, effect_notes
from saf_titan.fields.convert import field_types, is_section
from saf_titan.saf.plan.settings import PlanSettings

SAF = ["--saf.enable=true"]
FUSED = ["--model.family=llama3", "--model.flavor=debugmodel", "--model.fuse_qkv=true"]
CLASSES = ["--data.kind=class_tokens", "--data.gamma=0.5"]
RAMP = [*SAF, "--saf.schedule=ramp"]
BUDGET = [*SAF, "--saf.schedule=loss_budget"]
VALIDATOR = ["--validator.enable=true"]

# key: (value, settings beside which it has no effect, settings beside which it has one)
CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "model.rope_theta": ("500000", ["--model.position=learned"], []),
    "model.attention_backend": ("split", FUSED, []),
    "data.path": ("elsewhere", CLASSES, []),
    "data.shuffle": ("false", CLASSES, []),
    "validator.tokens": ("4096", [*VALIDATOR, *CLASSES], VALIDATOR),
    "validator.freq": ("7", [], VALIDATOR),
    "validator.examples": ("7", CLASSES, [*VALIDATOR, *CLASSES]),
    "validator.pairs": ("[2]", ["--data.kind=mqar"], [*VALIDATOR, "--data.kind=mqar"]),
    "optimizer.beta1": ("0.5", ["--optimizer.name=SGD"], []),
    "optimizer.beta2": ("0.5", ["--optimizer.name=SGD"], []),
    "optimizer.eps": ("0.5", ["--optimizer.name=SGD"], []),
    "optimizer.momentum": ("0.5", [], ["--optimizer.name=SGD"]),
    "lr_scheduler.decay_type": ("linear", ["--lr_scheduler.decay_ratio=0"], []),
    "lr_scheduler.min_lr_factor": ("0.5", ["--lr_scheduler.decay_ratio=0"], []),
    "circuits.layers": ("[0, 1]", [], ["--circuits.qk_lr_ratio=2"]),
    "circuits.scale_weight_decay": ("true", [], ["--circuits.qk_lr_ratio=2"]),
    "circuits.metrics_freq": ("7", FUSED, []),
    "circuits.metrics_sequences": ("7", ["--circuits.metrics_freq=0"], []),
    "saf.step": ("7", [], SAF),
    "saf.fraction": ("0.3", [], SAF),
    "saf.schedule": ("ramp", [], SAF),
    "saf.interval": ("7", SAF, RAMP),
    "saf.ramp_steps": ("7", BUDGET, RAMP),
    "saf.increment": ("0.5", RAMP, BUDGET),
    "saf.loss_budget": ("0.5", SAF, BUDGET),
    "saf.max_failures": ("7", SAF, BUDGET),
    "saf.rate": ("0.5", [], SAF),
    "saf.selector": ("kl", [], SAF),
    "saf.heads": ('["L0H3"]', ["--saf.selector=list"], [*SAF, "--saf.selector=list", "--saf.rate=0.007"]),
    "saf.seed": ("7", SAF, [*SAF, "--saf.selector=random"]),
    "saf.content": ("uniform", [], SAF),
    "saf.dirichlet_scale": ("4", SAF, [*SAF, "--saf.content=dirichlet", "--training.seq_len=64"]),
    "saf.max_dense_gib": ("7", SAF, [*SAF, "--saf.content=sharp", "--training.seq_len=64"]),
    "saf.max_fit_kl": ("0.5", [], SAF),
    "saf.fit_method": ("ipf", [*SAF, "--saf.content=prune"], SAF),
    "saf.rounding": ("floor", [], SAF),
    "saf.max_per_layer": ("7", [], SAF),
    "saf.exclude_layers": ("[0]", [], SAF),
    "saf.on_shortfall": (
        "warn",
        [*SAF, "--saf.selector=list", '--saf.heads=["L0H3"]', "--saf.rate=0.007"],
        SAF,
    ),
    "saf.pattern_lr": ("0.5", [], SAF),
    "saf.compensate": ("true", [], SAF),
    "saf.calibration_sequences": ("7", [], SAF),
    "saf.calibration_batch_size": ("7", [], SAF),
    "saf.calibration_split": ("train", [], SAF),
    "saf.calibration_seed": ("7", ["--circuits.metrics_freq=0"], []),
    "saf.keep_checkpoint": ("true", [*SAF, "--checkpoint.keep_latest_k=0"], SAF),
    "saf.timeout_seconds": ("7", [], SAF),
    "checkpoint.folder": ("elsewhere", ["--checkpoint.enable=false"], []),
    "checkpoint.interval": ("7", ["--checkpoint.enable=false"], []),
    "checkpoint.keep_latest_k": ("7", ["--checkpoint.enable=false"], []),
    "checkpoint.async_mode": ("async", ["--checkpoint.enable=false"], []),
    "metrics.save_tb_folder": ("elsewhere", [], ["--metrics.enable_tensorboard=true"]),
    "profiler.profile_freq": ("7", [], ["--profiler.enable_profiling=true"]),
    "profiler.save_traces_folder": ("elsewhere", [], ["--profiler.enable_profiling=true"]),
    "compile.components": ('["loss"]', [], ["--compile.enable=true"]),
    "compile.backend": ("eager", [], ["--compile.enable=true"]),
    "report.heads": ("7", ["--report.enable=false"], []),
}

# keys that are refused where another value leaves them without effect, see test_checks.py and test_generated_checks.py
REFUSED = {
    *(f"model.{name}" for name in ("num_heads", "num_kv_heads", "dim", "position", "init_std", "norm_eps", "bias")),
    *("model.gelu", "model.fuse_qkv", "data.vocab_size", "data.verify", "data.pairs", "data.power_a", "data.classes"),
    *("data.from_files", "data.zoology", "data.no_fillers", "data.zoology_rows"),
    *("data.distinct", "data.common", "data.gamma", "data.counts", "data.deterministic", "data.query_per_class"),
    *(f"circuits.{name}" for name in ("qk_lr_ratio_end", "qk_lr_hold_steps", "qk_lr_ramp_steps")),
    *("validator.lengths", "checkpoint.keep_steps", "checkpoint.load_step", "checkpoint.initial_load_path"),
    "checkpoint.initial_load_model_only",
}

# keys that every run reads
ALWAYS = {
    *(f"model.{name}" for name in ("family", "flavor", "vocab_size", "num_layers")),
    *("data.kind", "data.seed", "optimizer.name", "optimizer.lr", "optimizer.weight_decay", "optimizer.implementation"),
    *(f"training.{name}" for name in ("seq_len", "local_batch_size", "global_batch_size", "steps", "max_norm")),
    *(f"training.{name}" for name in ("dtype", "mixed_precision_param", "enable_cpu_offload", "cuda_graphs")),
    *("training.gc_freq", "circuits.group", "circuits.qk_lr_ratio", "circuits.qk_lr_schedule"),
    *(f"lr_scheduler.{name}" for name in ("warmup_steps", "total_steps", "decay_ratio")),
    *("saf.enable", "saf.matched_seconds", "validator.enable", "checkpoint.enable", "report.enable", "compile.enable"),
    *("metrics.log_freq", "metrics.enable_tensorboard", "metrics.enable_wandb", "profiler.enable_profiling"),
    *(f"parallelism.{name}_degree" for name in ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel")),
    *(f"parallelism.{name}_parallel_degree" for name in ("pipeline", "context")),
    *("parallelism.fsdp_reshard_after_forward", "parallelism.spmd_backend", "activation_checkpoint.mode"),
    *("comm.init_timeout_seconds", "comm.train_timeout_seconds"),
    *("debug.seed", "debug.deterministic", "debug.print_config"),
}


def noted(*words: str) -> set[str]:
    """The keys that are named, of a configuration without conflicts."""
    return {key for note in effect_notes(load_config(None, words)) for key in note.partition(" ha")[0].split(", ")}


@pytest.mark.parametrize("key", CASES)
def test_a_key_is_named_where_it_has_no_effect_and_nowhere_else(key: str) -> None:
    value, without, beside = CASES[key]
    assert noted(f"--{key}={value}", *without) - noted(*without) == {key}
    assert key not in noted(f"--{key}={value}", *beside)
    assert noted(*without).isdisjoint({key}), "a default is no key that somebody gave"


def test_rows_of_files_are_validated_by_their_number() -> None:
    files = ["--data.kind=mqar", "--data.from_files=true", *VALIDATOR]
    assert noted("--validator.tokens=4096", *files) == {"validator.tokens"}
    assert noted("--validator.examples=7", "--data.path=rows", "--data.shuffle=false", *files) == set()


def test_every_key_of_a_run_is_sorted_into_one_kind() -> None:
    keys = {
        f"{section}.{name}"
        for section, hint in field_types(RunConfig).items()
        if is_section(hint)
        for name in field_types(hint)
    }
    kinds = [set(CASES), REFUSED, ALWAYS]
    assert set().union(*kinds) == keys
    assert sum(map(len, kinds)) == len(keys), "a key is in two kinds"
    assert {key for rule in RULES for key in rule.keys} | {f"saf.{name}" for name in field_types(PlanSettings)} == set(
        CASES
    )


def test_keys_of_one_reason_share_a_sentence_and_each_is_named_once() -> None:
    words = ["--saf.interval=7", "--saf.ramp_steps=7", "--saf.seed=7", "--checkpoint.keep_latest_k=0"]
    assert effect_notes(load_config(None, words)) == [
        "saf.interval, saf.ramp_steps, saf.seed have no effect while saf.enable = false"
    ]
    assert effect_notes(load_config(None, [*SAF, *words, "--saf.content=prune"])) == [
        'saf.interval has no effect with saf.schedule = "once", which freezes once',
        'saf.ramp_steps has no effect without saf.schedule = "ramp"',
        "saf.seed has no effect on selector variance and content prune, which draw nothing",
    ]


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_every_key_of_a_packaged_configuration_has_an_effect(path: Path) -> None:
    assert effect_notes(load_config(path)) == []
