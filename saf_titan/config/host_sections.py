"""The sections that torchtitan has too, under torchtitan's names.

They have only the keys that a pretraining run needs. Defaults are torchtitan's, except where the published 124M recipe
sets a value (optimizer and schedule), and that checkpoints are on, so that no work is lost by default. The string under
a field is its documentation: `--help` prints it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from saf_titan.fields.ranges import FRACTION, NOT_NEGATIVE, POSITIVE, Range


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSection:
    """Length and size of the run."""

    seq_len: Annotated[int, POSITIVE] = 2048
    """Tokens in one sequence."""
    local_batch_size: Annotated[int, POSITIVE] = 8
    """Sequences that a data-parallel rank processes at once."""
    global_batch_size: Annotated[int, Range(low=1, also=(-1,))] = -1
    """Sequences in one optimizer step over all ranks, reached by gradient accumulation. -1: one microbatch per rank."""
    steps: Annotated[int, POSITIVE] = 10000
    """Optimizer steps of the whole run."""
    max_norm: Annotated[float, Range(above=0)] = 1.0
    """Gradients are clipped to this global norm."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of parameters, gradients and optimizer state."""
    mixed_precision_param: Literal["auto", "bfloat16", "float32", "bfloat16_autocast"] = "auto"
    """Type in which parameters are gathered and matrix products run. auto: bfloat16 on an accelerator, float32 on a
    CPU, because bfloat16 is slower on most CPUs. bfloat16_autocast: gpt, as published: matrix products in bfloat16 by
    torch.autocast; parameters are gathered, and residual stream and norms computed, in float32."""
    enable_cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory (FSDP)."""
    cuda_graphs: bool = False
    """Capture forward and backward as a CUDA graph; they are captured again after a freeze."""
    gc_freq: Annotated[int, POSITIVE] = 50
    """Steps between two runs of Python's garbage collector."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSection:
    """The optimizer; per-circuit factors are in [circuits]."""

    name: Literal["AdamW", "SGD"] = "AdamW"
    """Update rule. Muon is not offered: torchtitan's DistMuon takes one parameter group, but circuits need several."""
    lr: Annotated[float, Range(above=0)] = 6e-4
    """Peak learning rate."""
    beta1: Annotated[float, Range(low=0, below=1)] = 0.9
    """AdamW: decay of the first moment."""
    beta2: Annotated[float, Range(low=0, below=1)] = 0.95
    """AdamW: decay of the second moment."""
    eps: Annotated[float, Range(above=0)] = 1e-8
    """AdamW: added to the root of the second moment."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.1
    """Decoupled weight decay of every matrix, embeddings included; vectors do not decay."""
    momentum: Annotated[float, Range(low=0, below=1)] = 0.9
    """SGD: momentum."""
    implementation: Literal["fused", "foreach", "for-loop", "fused_opt_states_bf16"] = "fused"
    """Kernel of the update. fused_opt_states_bf16: AdamW with bfloat16 moments. SGD uses foreach in place of fused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LRSchedulerSection:
    """Linear warmup, constant learning rate, decay; one factor for all parameters."""

    warmup_steps: Annotated[int, NOT_NEGATIVE] = 200
    """Steps from zero to the peak."""
    total_steps: Annotated[int, NOT_NEGATIVE] = 0
    """Steps of the schedule; set it to stop a run early without changing the schedule. 0: training.steps."""
    decay_type: Literal["cosine", "linear", "sqrt"] = "cosine"
    """Shape of the decay."""
    decay_ratio: Annotated[float, FRACTION] = 1.0
    """Share of the schedule in which the learning rate decays. 1.0: all steps after the warmup; 0.0: none."""
    min_lr_factor: Annotated[float, FRACTION] = 0.1
    """Learning rate at the end, as a share of the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatorSection:
    """The loss that is reported, on the second half of the held-out windows."""

    enable: bool = False
    """Validate at step 1, every `freq` steps, around a freeze and at the end."""
    freq: Annotated[int, POSITIVE] = 500
    """Steps between two validations."""
    tokens: Annotated[int, NOT_NEGATIVE] = 262144
    """Held-out tokens of one validation, over all ranks together: as many of the first windows of that half as fit, at
    least one. The windows are the same each time and on any number of ranks. 0: the whole half."""
    examples: Annotated[int, POSITIVE] = 512
    """Generated data: sequences of one validation, over all ranks together, for each length and number of pairs."""
    lengths: tuple[int, ...] = ()
    """Generated data: sequence lengths to validate on, each separately. []: training.seq_len."""
    pairs: tuple[int, ...] = ()
    """mqar: numbers of pairs to validate on, each with each length. []: data.pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSection:
    """Checkpoints (torch.distributed.checkpoint), resumable at any world size."""

    enable: bool = True
    """Save checkpoints, and resume from those in the folder."""
    folder: str = "checkpoint"
    """Folder inside dump_folder."""
    interval: Annotated[int, POSITIVE] = 500
    """Steps between two checkpoints; a freeze and the last step are saved as well."""
    keep_latest_k: Annotated[int, Range(low=2, also=(0,))] = 10
    """Number of newest checkpoints to keep. 0: all. 1 is refused, because the newest may be incomplete."""
    keep_steps: tuple[int, ...] = ()
    """Steps whose checkpoints are kept regardless of keep_latest_k, to branch off from; each is saved even if it is not
    a multiple of interval. For the checkpoints before freezes there is saf.keep_checkpoint."""
    async_mode: Literal["disabled", "async", "async_with_pinned_mem"] = "disabled"
    """Save in the background."""
    load_step: Annotated[int, Range(low=0, also=(-1,))] = -1
    """Step to resume from. -1: the newest."""
    initial_load_path: str = ""
    """Checkpoint to start from when the run has none of its own; a relative path is relative to the working directory.
    With the extra hf also a model of Hugging Face transformers (a folder with config.json), or nanoGPT's ckpt.pt."""
    initial_load_model_only: bool = False
    """false: continue from that checkpoint, with its moments, step and place in the same data. true: take only its
    weights and static heads, and begin a new run, on any data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsSection:
    """What is logged; metrics.jsonl is always written."""

    log_freq: Annotated[int, POSITIVE] = 10
    """Steps between two lines of the log."""
    enable_tensorboard: bool = False
    """Write TensorBoard events."""
    enable_wandb: bool = False
    """Log to Weights & Biases, which reads its own WANDB_* variables."""
    save_tb_folder: str = "tb"
    """TensorBoard folder inside dump_folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfilerSection:
    """torch.profiler traces."""

    enable_profiling: bool = False
    """Record traces."""
    profile_freq: Annotated[int, Range(low=4)] = 10
    """Steps between two traces, each after three warmup steps."""
    save_traces_folder: str = "profiling/traces"
    """Trace folder inside dump_folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelismSection:
    """How the ranks of torchrun share the work."""

    data_parallel_replicate_degree: Annotated[int, POSITIVE] = 1
    """Copies of the sharded model (HSDP, DDP)."""
    data_parallel_shard_degree: Annotated[int, Range(low=1, also=(-1,))] = -1
    """Ranks that share one copy (FSDP). -1: all remaining ranks."""
    tensor_parallel_degree: Annotated[int, POSITIVE] = 1
    """Ranks that split every matrix."""
    pipeline_parallel_degree: Annotated[int, POSITIVE] = 1
    """Ranks that split the layers."""
    context_parallel_degree: Annotated[int, POSITIVE] = 1
    """Ranks that split the sequence."""
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Free gathered parameters after the forward pass."""
    spmd_backend: Literal["spmd_types", "partial_dtensor", "full_dtensor"] = "spmd_types"
    """torchtitan's way of typing sharded tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationCheckpointSection:
    """Recompute activations in the backward pass instead of keeping them."""

    mode: Literal["none", "full", "selective"] = "none"
    """selective: keep outputs that are costly to recompute, such as those of attention. full: recompute layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileSection:
    """torch.compile."""

    enable: bool = False
    """Compile."""
    components: tuple[Literal["model", "loss"], ...] = ("model", "loss")
    """What to compile; the model is compiled block by block."""
    backend: Literal["inductor", "aot_eager", "eager"] = "inductor"
    """What runs the traced graphs. inductor: generated kernels. aot_eager, eager: torch's own operations, with and
    without traced backward graphs, to find out which part of the compilation a fault comes from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommSection:
    """Time limits of collectives."""

    init_timeout_seconds: Annotated[int, POSITIVE] = 300
    """Seconds that a collective may take until the end of the first step."""
    train_timeout_seconds: Annotated[int, POSITIVE] = 100
    """Seconds that a collective may take afterwards; a freeze has its own limit, saf.timeout_seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DebugSection:
    """Reproducibility."""

    seed: Annotated[int, NOT_NEGATIVE] = 1337
    """Seed of the initial weights."""
    deterministic: bool = False
    """Use deterministic algorithms where they exist; this is slower."""
    print_config: bool = False
    """Print torchtitan's resolved configuration at the start."""
