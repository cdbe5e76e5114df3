"""The sections of this plugin: model, data, circuits, the freeze, the report.

The string under a field is its documentation: `--help` prints it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from saf_titan.config.circuit_groups import CircuitGroup
from saf_titan.config.generated_data import GeneratedData
from saf_titan.config.shapes import FAMILIES
from saf_titan.fields.choices import OneOf
from saf_titan.fields.ranges import NOT_NEGATIVE, POSITIVE, Range
from saf_titan.saf.plan.settings import PlanSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSection:
    """The decoder."""

    family: Annotated[str, OneOf(FAMILIES)] = "gpt"
    """The decoder. Families of torchtitan get attention that can hold static heads (see fuse_qkv)."""
    flavor: str = "124m"
    """Size: one of the flavors of the family."""
    fuse_qkv: bool = False
    """Families of torchtitan: use torchtitan's attention, with wq, wk and wv as one matrix. Such a model cannot be
    frozen and has no QK circuit, but supports tensor, pipeline and context parallelism."""
    position: Literal["rope", "learned"] = "rope"
    """gpt: rotary or learned absolute positions."""
    vocab_size: Annotated[int, NOT_NEGATIVE] = 0
    """Rows of the embedding; at least the size of the vocabulary of the data. 0: the flavor's (gpt: 50304, which is
    GPT-2's 50257 padded to a multiple of 128)."""
    num_layers: Annotated[int, NOT_NEGATIVE] = 0
    """Number of layers; families of torchtitan: at most the flavor's. 0: the flavor's."""
    num_heads: Annotated[int, NOT_NEGATIVE] = 0
    """gpt: query heads of a layer. 0: the flavor's."""
    num_kv_heads: Annotated[int, NOT_NEGATIVE] = 0
    """gpt: kv heads of a layer, each shared by the same number of query heads. 0: one for each query head."""
    dim: Annotated[int, NOT_NEGATIVE] = 0
    """gpt: width of the residual stream. 0: the flavor's."""
    rope_theta: Annotated[float, Range(above=1)] = 10000.0
    """gpt with rope: base of the rotation frequencies."""
    init_std: Annotated[float, Range(above=0)] = 0.02
    """gpt: standard deviation of the initial weights; output projections get it divided by sqrt(2 num_layers)."""
    norm_eps: Annotated[float, Range(above=0)] = 1e-5
    """gpt: added to the variance in LayerNorm."""
    bias: bool = False
    """gpt: every linear layer but the output head, and every LayerNorm, has a bias, as in GPT-2 and nanoGPT."""
    gelu: Literal["exact", "tanh"] = "exact"
    """gpt: the activation of the feed-forward layers; tanh is the approximation that GPT-2 was trained with."""
    attention_backend: Literal["auto", "naive", "split", "fused"] = "auto"
    """Attention of layers with live and static heads. auto: on a CPU fused, which is measured to be the fastest; on a
    GPU split, which keeps torch's attention kernel for the live heads and is not yet timed against fused. A backend
    that is named must be able to run on the device. The log says which one each layer uses, and why."""


@dataclass(frozen=True, kw_only=True)
class DataSection(GeneratedData):
    """The token ids to train on."""

    path: str = "data/fineweb_edu"
    """Folder written by rust_data.tokenize, folder of .bin files of nanoGPT, llm.c or modded-nanogpt, or one such file;
    a relative path is relative to the working directory. In a folder without manifest.json, files whose name has the
    word val are held out for calibration and validation; without such a file, the last tenth of the ids is held out, at
    most 10 million. With data.from_files: a folder written by rust_data.gen."""
    vocab_size: Annotated[int, NOT_NEGATIVE] = 0
    """Size of the vocabulary, for .bin files that do not store it: 50257 for GPT-2. 0: as stored in the files. mqar:
    number of ids, a quarter of them fillers, the rest keys and values; 0: 8192."""
    seed: Annotated[int, NOT_NEGATIVE] = 1337
    """Seed of the order of the training windows or rows. Generated data: seed of the training sequences themselves."""
    shuffle: bool = True
    """Visit the windows of an epoch, or the rows of files, in a seeded random order, each once. false: in the order of
    the corpus."""
    verify: bool = False
    """Compare every shard with its digest in manifest.json before the first step, which reads all data once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitsSection:
    """Learning rates by circuit. The qk_lr_ keys are the short form of one group for wq and wk."""

    group: tuple[CircuitGroup, ...] = ()
    """[[circuits.group]] tables with match (qk, ov, mlp, norm, embedding or a pattern), layers, factor, schedule,
    factor_end, hold_steps, ramp_steps. On the command line, once for each group: qk:layers=6-11,factor=0.25,
    schedule=hold_then_ramp,hold_steps=200,ramp_steps=50."""

    qk_lr_ratio: Annotated[float, Range(above=0)] = 1.0
    """Factor on the learning rate of wq and wk. linear, hold_then_ramp: the factor at the start."""
    qk_lr_schedule: Literal["constant", "linear", "hold_then_ramp"] = "constant"
    """constant: always qk_lr_ratio. linear: from qk_lr_ratio to qk_lr_ratio_end in qk_lr_ramp_steps. hold_then_ramp:
    the same, after qk_lr_hold_steps."""
    qk_lr_ratio_end: Annotated[float, Range(above=0)] = 1.0
    """linear, hold_then_ramp: the factor after the ramp."""
    qk_lr_hold_steps: Annotated[int, NOT_NEGATIVE] = 0
    """hold_then_ramp: number of steps before the ramp."""
    qk_lr_ramp_steps: Annotated[int, NOT_NEGATIVE] = 0
    """linear, hold_then_ramp: number of steps of the ramp."""
    layers: tuple[int, ...] = ()
    """[first, last], both counted from 0 and included: the layers that the factor applies to. []: all."""
    scale_weight_decay: bool = False
    """true: the weight decay per step of a group grows with its factor, as in plain AdamW. false: it stays the same."""
    metrics_freq: Annotated[int, NOT_NEGATIVE] = 100
    """Steps between two measurements of the circuits: how far a step moves W_Q^T W_K and W_O W_V of each layer, and
    entropy, sink and recent mass of attention on `metrics_sequences` held-out sequences. 0: never."""
    metrics_sequences: Annotated[int, Range(low=2)] = 2
    """Number of held-out sequences that attention is measured on; if there are more ranks, one for each rank."""


@dataclass(frozen=True, kw_only=True)
class FreezeTiming:
    """When heads become static."""

    enable: bool = False
    """Freeze heads during this run."""
    step: Annotated[int, NOT_NEGATIVE] = 0
    """Optimizer steps before the freeze. 0: see fraction."""
    fraction: Annotated[float, Range(above=0, high=1)] = 0.5
    """Steps before the freeze as a share of training.steps, rounded down. Give step or fraction, not both. 1: after the
    last step, without further training; also on a run that has ended."""
    schedule: Literal["once", "ramp", "loss_budget"] = "once"
    """once: all heads at the freeze step. ramp: a few heads every `interval` steps, for `ramp_steps` from the freeze
    step on. loss_budget: `increment` more every `interval` steps, undone if the held-out loss rises too much."""
    interval: Annotated[int, POSITIVE] = 100
    """ramp, loss_budget: steps between two freezes."""
    ramp_steps: Annotated[int, POSITIVE] = 500
    """ramp: steps from the freeze step to the full rate."""
    increment: Annotated[float, Range(above=0, high=1)] = 0.02
    """loss_budget: share of all heads that a freeze adds, at least one head; halved after a freeze that was undone."""
    loss_budget: Annotated[float, Range(above=0)] = 0.01
    """loss_budget: largest total relative rise of the loss on the calibration sequences, over all freezes that stay
    (0.01: 1 %)."""
    max_failures: Annotated[int, POSITIVE] = 3
    """loss_budget: number of undone freezes after which no more are tried."""


@dataclass(frozen=True, kw_only=True)
class SafSection(PlanSettings, FreezeTiming):
    """Selective attention freezing: during the run, heads whose attention hardly depends on the text become static."""

    pattern_lr: Annotated[float, NOT_NEGATIVE] = 0.0
    """Learning rate of the patterns (alpha and rho), which are then trained further. 0: they stay fixed."""
    compensate: bool = False
    """Solve the value rows of static heads again (their columns of the output projection, if query heads share values),
    so that the frozen output comes near the live one. New weights are solved on all calibration batches of a rank but
    the last, and each head keeps its own only if they lower the loss on the last batch; so two sequences are needed
    beside that batch. For freezing without further training, because training would have the same effect."""
    calibration_sequences: Annotated[int, Range(low=2)] = 32
    """Number of sequences that the statistics are computed from. If the number of ranks does not divide it, the next
    multiple of the number of ranks is used."""
    calibration_batch_size: Annotated[int, NOT_NEGATIVE] = 0
    """Sequences that a rank calibrates at once. 0: training.local_batch_size."""
    calibration_split: Literal["validation", "train"] = "validation"
    """validation: the sequences are windows of the first half of the held-out tokens. train: windows of the training
    tokens, as published; the order of training does not change."""
    calibration_seed: Annotated[int, NOT_NEGATIVE] = 1337
    """Seed of the choice of calibration sequences."""
    keep_checkpoint: bool = False
    """Keep the checkpoint that is saved just before each freeze, with the heads as they were, regardless of
    checkpoint.keep_latest_k."""
    matched_seconds: Annotated[float, NOT_NEGATIVE] = 0.0
    """For comparison at equal time: train for this many seconds, from the start or from another run's checkpoint, in as
    many steps as the time allows; the learning rate follows the share of time that has passed. 0: train
    `training.steps` steps."""
    timeout_seconds: Annotated[int, POSITIVE] = 7200
    """Seconds that a collective may take during a freeze."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSection:
    """report.html in dump_folder."""

    enable: bool = True
    """Write the report at the end of the run."""
    heads: Annotated[int, NOT_NEGATIVE] = 8
    """Number of static heads whose patterns are drawn."""
