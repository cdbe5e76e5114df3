"""Builds torchtitan's configuration from the configuration of a run, with one function for each part."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # isort: skip

from pathlib import Path

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.validate import Validator
from torchtitan.config import CommConfig, CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointingConfig, FullAC
from torchtitan.tools.profiler import Profiler

from saf_titan.circuits.optimizer import CircuitOptimizers, CircuitSchedules
from saf_titan.config import RunConfig
from saf_titan.data.loader import NullTokenizer
from saf_titan.data.sources import training_loader, validation_loader
from saf_titan.layers.activation_checkpoint import SelectiveACWithStaticMix
from saf_titan.models import model_spec
from saf_titan.run.answers import AnswerValidator
from saf_titan.run.checkpoints import SoundCheckpoints
from saf_titan.run.metrics import RunMetrics
from saf_titan.run.precision import compute_precision, uses_autocast
from saf_titan.run.trainer import SAFTrainer
from saf_titan.run.validation import FixedSetValidator


def trainer_config(run: RunConfig, *, initial: Path | None = None) -> SAFTrainer.Config:
    """Return torchtitan's configuration of ``run``, whose ``build()`` makes the process group and the trainer.

    initial: the checkpoint to start from instead of the run's own ``initial_load_path``; see `initial_weights`.
    """
    spec = model_spec(run.model, run.shape, max_seq_len=run.max_seq_len, autocast=uses_autocast(run))
    vocab_size = spec.model.vocab_size
    return SAFTrainer.Config(
        run=run,
        model_spec=spec,
        dump_folder=run.dump_folder,
        hf_assets_path="",
        tokenizer=NullTokenizer.Config(),
        dataloader=training_loader(run),
        loss=CrossEntropyLoss.Config(global_vocab_size=vocab_size),
        optimizer=_optimizer(run),
        lr_scheduler=_lr_scheduler(run),
        validator=_validator(run),
        checkpoint=_checkpoint(run, initial),
        metrics=RunMetrics.Config(
            log_freq=run.metrics.log_freq,
            enable_tensorboard=run.metrics.enable_tensorboard,
            enable_wandb=run.metrics.enable_wandb,
            save_tb_folder=run.metrics.save_tb_folder,
            disable_color_printing=True,
            total_steps=run.training.steps,
        ),
        training=TrainingConfig(
            local_batch_size=run.training.local_batch_size,
            global_batch_size=run.training.global_batch_size,
            seq_len=run.training.seq_len,
            max_norm=run.training.max_norm,
            steps=run.training.steps,
            enable_cpu_offload=run.training.enable_cpu_offload,
            disable_cuda_graphs=not run.training.cuda_graphs,
            dtype=run.training.dtype,
            mixed_precision_param=compute_precision(run),
            gc_freq=run.training.gc_freq,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=run.parallelism.data_parallel_replicate_degree,
            data_parallel_shard_degree=run.parallelism.data_parallel_shard_degree,
            tensor_parallel_degree=run.parallelism.tensor_parallel_degree,
            pipeline_parallel_degree=run.parallelism.pipeline_parallel_degree,
            context_parallel_degree=run.parallelism.context_parallel_degree,
            fsdp_reshard_after_forward=run.parallelism.fsdp_reshard_after_forward,
            spmd_backend=run.parallelism.spmd_backend,
        ),
        activation_checkpoint=_activation_checkpoint(run),
        compile=CompileConfig(
            enable=run.compile.enable, components=list(run.compile.components), backend=run.compile.backend
        ),
        comm=CommConfig(
            init_timeout_seconds=run.comm.init_timeout_seconds, train_timeout_seconds=run.comm.train_timeout_seconds
        ),
        profiler=Profiler.Config(
            enable_profiling=run.profiler.enable_profiling,
            profile_freq=run.profiler.profile_freq,
            save_traces_folder=run.profiler.save_traces_folder,
        ),
        debug=DebugConfig(
            seed=run.debug.seed,
            deterministic=run.debug.deterministic,
            print_config=run.debug.print_config,
            enable_structured_logging=False,
        ),
    )


def _optimizer(run: RunConfig) -> CircuitOptimizers.Config:
    optimizer = run.optimizer
    hyper_parameters: dict[str, object] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if optimizer.name == "AdamW":
        hyper_parameters |= {"betas": (optimizer.beta1, optimizer.beta2), "eps": optimizer.eps}
    else:
        hyper_parameters |= {"momentum": optimizer.momentum}
    implementation = optimizer.implementation
    if optimizer.name == "SGD" and implementation == "fused":
        # torch's fused SGD has no sharding strategy for DTensors
        implementation = "foreach"
    if implementation == "fused_opt_states_bf16" and compat.is_cpu():
        raise ValueError('optimizer.implementation = "fused_opt_states_bf16" needs a GPU; use "fused" on a CPU')
    return CircuitOptimizers.Config(
        name=optimizer.name,
        hyper_parameters=hyper_parameters,
        rules=run.circuit_groups,
        implementation=implementation,
    )


def _validator(run: RunConfig) -> Validator.Config:
    validator, loader = run.validator, validation_loader(run)
    if run.data.has_answers:
        return AnswerValidator.Config(
            enable=validator.enable, freq=validator.freq, dataloader=loader, cells=tuple(run.validation_cells), steps=1
        )
    return FixedSetValidator.Config(enable=validator.enable, freq=validator.freq, dataloader=loader)


def _lr_scheduler(run: RunConfig) -> CircuitSchedules.Config:
    schedule = run.lr_scheduler
    return CircuitSchedules.Config(
        warmup_steps=schedule.warmup_steps,
        total_steps=run.schedule_steps,
        # None is torchtitan's value for a decay over all steps after the warm-up
        decay_ratio=None if schedule.decay_ratio == 1.0 else schedule.decay_ratio,
        decay_type=schedule.decay_type,
        min_lr_factor=schedule.min_lr_factor,
        scale_weight_decay=run.circuits.scale_weight_decay,
    )


def _checkpoint(run: RunConfig, start: Path | None) -> SoundCheckpoints.Config:
    checkpoint = run.checkpoint
    initial = start or checkpoint.initial_load_path
    return SoundCheckpoints.Config(
        enable=checkpoint.enable,
        folder=checkpoint.folder,
        interval=checkpoint.interval,
        keep_latest_k=checkpoint.keep_latest_k,
        extra_steps=checkpoint.keep_steps,
        async_mode=checkpoint.async_mode,
        load_step=checkpoint.load_step,
        initial_load_path=str(Path(initial).resolve()) if initial else None,
        initial_load_model_only=checkpoint.initial_load_model_only,
        # torchtitan's default would save only the weights at the last step, which cannot be resumed
        last_save_model_only=False,
    )


def _activation_checkpoint(run: RunConfig) -> ActivationCheckpointingConfig:
    modes = {"none": None, "full": FullAC.Config(), "selective": SelectiveACWithStaticMix.Config()}
    return modes[run.activation_checkpoint.mode]
