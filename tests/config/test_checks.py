"""Combinations that cannot make a run are refused before anything is built, and the nearest possible ones are not.

Covers config/freeze_checks.py, config/schema.py, config/shapes.py.
"""

import pytest

from saf_titan.config import ConfigError, RunConfig, check_world_size, load_config

SAF = ["--saf.enable=true"]
LLAMA = ["--model.family=llama3", "--model.flavor=debugmodel"]
QWEN = ["--model.family=qwen3", "--model.flavor=debugmodel"]
FUSED = [*LLAMA, "--model.fuse_qkv=true"]


def faults(*words: str) -> dict[str, str]:
    """Message of each key that is blamed; empty for a good configuration."""
    try:
        load_config(None, words)
    except ConfigError as error:
        return {problem.key: problem.message for problem in error.problems}
    return {}


@pytest.mark.parametrize("step", [1, 99, 100])
def test_freeze_inside_the_run(step: int) -> None:
    words = [*SAF, "--training.steps=100", "--lr_scheduler.warmup_steps=10", f"--saf.step={step}"]
    assert load_config(None, words).freeze_step == step


def test_freeze_beyond_the_last_step() -> None:
    found = faults(*SAF, "--training.steps=100", "--lr_scheduler.warmup_steps=10", "--saf.step=101")
    assert list(found) == ["saf.step"]
    assert "100" in found["saf.step"]


def test_a_fraction_too_small_for_one_step() -> None:
    words = [*SAF, "--training.steps=10", "--lr_scheduler.warmup_steps=1"]
    assert list(faults(*words, "--saf.fraction=0.05")) == ["saf.fraction"]
    assert not faults(*words, "--saf.fraction=0.1")


def test_a_freeze_that_is_off_is_not_checked() -> None:
    assert not faults("--saf.step=99999999")


@pytest.mark.parametrize(("fraction", "steps", "expected"), [("0.29", 100, 29), ("0.5", 37513, 18756), ("0.3", 10, 3)])
def test_fraction_counts_as_the_decimal_that_was_written(fraction: str, steps: int, expected: int) -> None:
    words = [f"--saf.fraction={fraction}", f"--training.steps={steps}", "--lr_scheduler.warmup_steps=1"]
    assert load_config(None, words).freeze_step == expected


def test_step_and_fraction_exclude_each_other_in_one_source(tmp_path) -> None:
    assert list(faults(*SAF, "--saf.step=5", "--saf.fraction=0.4")) == ["saf.step"]
    path = tmp_path / "run.toml"
    path.write_text("[saf]\nenable = true\nfraction = 0.4")
    assert load_config(path, ["--saf.step=7"]).freeze_step == 7
    path.write_text("[saf]\nenable = true\nstep = 7")
    assert load_config(path, ["--saf.fraction=0.4"]).freeze_step == 4000
    path.write_text("[saf]\nstep = 7\nfraction = 0.4")
    with pytest.raises(ConfigError, match="cannot be given together"):
        load_config(path, [])


def test_more_heads_than_the_layers_leave() -> None:
    # 12 layers x 12 heads; 25 % are 36
    assert not faults(*SAF, "--saf.max_per_layer=3")
    assert list(faults(*SAF, "--saf.max_per_layer=2")) == ["saf.rate"]
    assert not faults(*SAF, "--saf.max_per_layer=2", "--saf.on_shortfall=warn")
    assert list(faults(*SAF, "--saf.rate=1.0", "--saf.exclude_layers=[0]")) == ["saf.rate"]


@pytest.mark.parametrize("layers", ["[12]", "[-1]"])
def test_excluded_layers_must_exist(layers: str) -> None:
    assert list(faults(*SAF, f"--saf.exclude_layers={layers}")) == ["saf.exclude_layers"]
    assert not faults(*SAF, "--saf.exclude_layers=[0, 11]")


def test_a_ratio_on_a_fused_weight_names_the_remedy() -> None:
    message = faults(*FUSED, "--circuits.qk_lr_ratio=2")["circuits.qk_lr_ratio"]
    assert "wqkv" in message
    assert "model.fuse_qkv = false" in message
    assert not faults(*FUSED)
    assert not faults(*LLAMA, "--circuits.qk_lr_ratio=2")


def test_a_ratio_schedule_on_a_fused_weight() -> None:
    found = faults(*FUSED, "--circuits.qk_lr_schedule=linear", "--circuits.qk_lr_ramp_steps=5")
    assert list(found) == ["circuits.qk_lr_schedule"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--circuits.qk_lr_ramp_steps=5"], "circuits.qk_lr_ramp_steps"),
        (["--circuits.qk_lr_hold_steps=5"], "circuits.qk_lr_hold_steps"),
        (["--circuits.qk_lr_ratio_end=2"], "circuits.qk_lr_ratio_end"),
        (["--circuits.qk_lr_schedule=linear"], "circuits.qk_lr_ramp_steps"),
        (["--circuits.qk_lr_schedule=hold_then_ramp"], "circuits.qk_lr_ramp_steps"),
        (
            ["--circuits.qk_lr_schedule=linear", "--circuits.qk_lr_ramp_steps=5", "--circuits.qk_lr_hold_steps=5"],
            "circuits.qk_lr_hold_steps",
        ),
        (["--circuits.layers=[3]"], "circuits.layers"),
        (["--circuits.layers=[5, 3]"], "circuits.layers"),
        (["--circuits.layers=[0, 12]"], "circuits.layers"),
        (["--circuits.layers=[-1, 3]"], "circuits.layers"),
        (["--model.dim=100"], "model.dim"),
        (["--model.num_heads=7"], "model.num_heads"),
        (["--model.num_kv_heads=5"], "model.num_kv_heads"),
        ([*LLAMA, "--model.num_kv_heads=4"], "model.num_kv_heads"),
        (["--model.dim=60"], "model.position"),
        ([*LLAMA, "--model.dim=512"], "model.dim"),
        ([*LLAMA, "--model.position=learned"], "model.position"),
        (["--model.flavor=debugmodel"], "model.flavor"),
        (["--model.family=llama3"], "model.flavor"),
        (["--training.local_batch_size=8", "--training.global_batch_size=12"], "training.global_batch_size"),
        (["--lr_scheduler.total_steps=9999"], "lr_scheduler.total_steps"),
        (["--lr_scheduler.warmup_steps=10001"], "lr_scheduler.warmup_steps"),
        (["--lr_scheduler.warmup_steps=6000", "--lr_scheduler.decay_ratio=0.5"], "lr_scheduler.decay_ratio"),
        (["--compile.enable=true", "--compile.components=[]"], "compile.components"),
        (["--optimizer.name=SGD", "--optimizer.implementation=fused_opt_states_bf16"], "optimizer.implementation"),
        (["--parallelism.tensor_parallel_degree=2"], "parallelism.tensor_parallel_degree"),
        (["--parallelism.context_parallel_degree=2"], "parallelism.context_parallel_degree"),
        (["--parallelism.pipeline_parallel_degree=2"], "parallelism.pipeline_parallel_degree"),
        ([*FUSED, "--parallelism.tensor_parallel_degree=32"], "parallelism.tensor_parallel_degree"),
        ([*FUSED, "--training.seq_len=127", "--parallelism.context_parallel_degree=2"], "training.seq_len"),
        (
            [*FUSED, "--model.flavor=1B", "--parallelism.pipeline_parallel_degree=2"],
            "parallelism.pipeline_parallel_degree",
        ),
        (
            [*FUSED, "--parallelism.pipeline_parallel_degree=2", "--training.cuda_graphs=true"],
            "training.cuda_graphs",
        ),
        ([*FUSED, *SAF], "saf.enable"),
        (["--model.fuse_qkv=true"], "model.fuse_qkv"),
        ([*LLAMA, "--model.num_layers=7"], "model.num_layers"),
        ([*LLAMA, "--parallelism.tensor_parallel_degree=2"], "parallelism.tensor_parallel_degree"),
        ([*LLAMA, "--parallelism.context_parallel_degree=2"], "parallelism.context_parallel_degree"),
        ([*LLAMA, "--parallelism.pipeline_parallel_degree=2"], "parallelism.pipeline_parallel_degree"),
        (["--checkpoint.enable=false", "--checkpoint.load_step=10"], "checkpoint.load_step"),
        (["--checkpoint.initial_load_model_only=true"], "checkpoint.initial_load_model_only"),
        (["--checkpoint.enable=false", "--checkpoint.initial_load_path=x"], "checkpoint.initial_load_path"),
        ([*FUSED, "--parallelism.pipeline_parallel_degree=7"], "parallelism.pipeline_parallel_degree"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_impossible_combinations(words: list[str], key: str) -> None:
    assert list(faults(*words)) == [key]


@pytest.mark.parametrize(
    "words",
    [
        ["--circuits.qk_lr_schedule=linear", "--circuits.qk_lr_ramp_steps=5", "--circuits.qk_lr_ratio_end=2"],
        ["--circuits.qk_lr_schedule=hold_then_ramp", "--circuits.qk_lr_ramp_steps=5", "--circuits.qk_lr_hold_steps=9"],
        ["--circuits.layers=[0, 11]", "--circuits.qk_lr_ratio=0.25"],
        ["--model.dim=60", "--model.position=learned"],
        [*LLAMA, *SAF, "--model.vocab_size=50304"],
        [*QWEN, *SAF, "--model.num_layers=2"],
        ["--model.num_layers=2", "--model.num_heads=4", "--model.num_kv_heads=2", "--model.dim=32"],
        ["--training.local_batch_size=8", "--training.global_batch_size=16"],
        ["--lr_scheduler.total_steps=20000"],
        ["--lr_scheduler.warmup_steps=5000", "--lr_scheduler.decay_ratio=0.5"],
        ["--lr_scheduler.warmup_steps=10000"],
        [*FUSED, "--parallelism.tensor_parallel_degree=4"],
        [*FUSED, "--parallelism.context_parallel_degree=2"],
        [*FUSED, "--parallelism.pipeline_parallel_degree=6"],
    ],
    ids=" ".join,
)
def test_possible_combinations(words: list[str]) -> None:
    assert not faults(*words)


def test_shape_takes_the_flavor_and_its_overrides() -> None:
    shape = load_config(None, ["--model.flavor=1b"]).shape
    assert (shape.num_layers, shape.num_heads, shape.dim, shape.num_kv_heads) == (32, 16, 1536, 16)
    shape = load_config(None, ["--model.num_layers=2", "--model.num_heads=4", "--model.dim=32"]).shape
    assert (shape.num_layers, shape.num_heads, shape.dim, shape.num_kv_heads) == (2, 4, 32, 4)


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_world_sizes_that_share_the_batch(world_size: int) -> None:
    check_world_size(
        load_config(None, ["--training.local_batch_size=2", "--training.global_batch_size=12"]), world_size
    )


def test_world_size_that_cannot_share_the_batch() -> None:
    config = load_config(None, ["--training.local_batch_size=2", "--training.global_batch_size=12"])
    with pytest.raises(ConfigError, match=r"global_batch_size = 12: must be a multiple .* 2 x 4 = 8"):
        check_world_size(config, 4)


@pytest.mark.parametrize(
    ("words", "world_size"),
    [
        (["--parallelism.data_parallel_replicate_degree=2"], 3),
        (["--parallelism.data_parallel_shard_degree=2"], 4),
        ([*FUSED, "--parallelism.tensor_parallel_degree=4"], 2),
    ],
)
def test_world_size_that_does_not_fit_the_degrees(words: list[str], world_size: int) -> None:
    with pytest.raises(ConfigError, match="data_parallel_shard_degree"):
        check_world_size(load_config(None, words), world_size)


@pytest.mark.parametrize(
    ("sequences", "batch", "world_size", "key"),
    [
        (64, 8, 4, None),
        # 30 on 4 ranks become 32
        (30, 8, 4, "saf.calibration_batch_size"),
        (30, 4, 4, None),
        (3, 1, 1, None),
        (2, 1, 1, "saf.calibration_batch_size"),
        (4, 1, 2, None),
        (4, 2, 1, None),
        (4, 3, 1, None),
        (4, 4, 1, "saf.calibration_batch_size"),
        (8, 4, 2, "saf.calibration_batch_size"),
    ],
)
def test_calibration_sequences_to_compensate_on(sequences: int, batch: int, world_size: int, key: str | None) -> None:
    words = [*SAF, f"--saf.calibration_sequences={sequences}", f"--saf.calibration_batch_size={batch}"]
    config = load_config(None, [*words, "--saf.compensate=true"])
    if key is None:
        check_world_size(config, world_size)
        return
    with pytest.raises(ConfigError) as caught:
        check_world_size(config, world_size)
    assert [problem.key for problem in caught.value.problems] == [key]
    if key == "saf.calibration_batch_size":
        check_world_size(load_config(None, words), world_size)


def test_properties_resolve_zeros() -> None:
    config = RunConfig()
    assert config.schedule_steps == config.training.steps
    assert config.calibration_batch_size == config.training.local_batch_size
    assert load_config(None, ["--lr_scheduler.total_steps=12345"]).schedule_steps == 12345
    assert not config.scales_qk


def test_a_gate_on_what_is_not_fitted() -> None:
    words = [*SAF, "--saf.content=prune"]
    assert not faults(*words)
    assert "fits no pattern" in faults(*words, "--saf.max_fit_kl=1.0")["saf.max_fit_kl"]


def test_matrices_that_are_too_large() -> None:
    words = [*SAF, "--saf.content=sharp", "--training.seq_len=1024", "--saf.rate=0.25"]
    assert not faults(*words)
    message = faults(*words, "--saf.max_dense_gib=0.1")["saf.content"]
    # 124m has 144 heads
    assert "36 heads x 1024 x 1024 x 4 bytes = 150,994,944 bytes (0.14 GiB), but the limit is 0.1 GiB" in message
    assert "two vectors" in faults(*words, "--saf.pattern_lr=0.1")["saf.pattern_lr"]


def test_steps_to_keep_are_steps_of_the_run() -> None:
    steps = ("--training.steps=10", "--lr_scheduler.warmup_steps=1")
    assert not faults(*steps, "--checkpoint.keep_steps=[1, 10]")
    assert list(faults(*steps, "--checkpoint.keep_steps=[5, 11]")) == ["checkpoint.keep_steps"]
    assert list(faults(*steps, "--checkpoint.keep_steps=[0]")) == ["checkpoint.keep_steps"]


def test_without_checkpoints_none_can_be_kept() -> None:
    words = ("--checkpoint.enable=false", "--saf.keep_checkpoint=true", "--checkpoint.keep_steps=[5]")
    assert sorted(faults(*words)) == ["checkpoint.keep_steps", "saf.keep_checkpoint"]


def test_what_needs_steps_behind_the_freeze_is_refused_at_the_end() -> None:
    end = (*SAF, "--saf.fraction=1")
    assert not faults(*end)
    assert list(faults(*end, "--saf.matched_seconds=10")) == ["saf.matched_seconds"]
    assert list(faults(*end, "--saf.pattern_lr=0.1")) == ["saf.pattern_lr"]
    assert "saf.schedule" in faults(*end, "--saf.schedule=loss_budget")
