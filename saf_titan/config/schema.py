"""The whole configuration of a run, and what follows from it by arithmetic alone."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from saf_titan.config.circuit_groups import CircuitGroup
from saf_titan.config.host_sections import (
    ActivationCheckpointSection,
    CheckpointSection,
    CommSection,
    CompileSection,
    DebugSection,
    LRSchedulerSection,
    MetricsSection,
    OptimizerSection,
    ParallelismSection,
    ProfilerSection,
    TrainingSection,
    ValidatorSection,
)
from saf_titan.config.own_sections import CircuitsSection, DataSection, ModelSection, ReportSection, SafSection
from saf_titan.config.shapes import SHAPES, ModelShape


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run, with a field for each section. Values are kept as given; properties resolve a 0 that means a default."""

    dump_folder: str = ""
    """Folder of everything that the run writes. Empty: outputs/<name of the configuration file>."""
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    lr_scheduler: LRSchedulerSection = field(default_factory=LRSchedulerSection)
    circuits: CircuitsSection = field(default_factory=CircuitsSection)
    saf: SafSection = field(default_factory=SafSection)
    validator: ValidatorSection = field(default_factory=ValidatorSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    profiler: ProfilerSection = field(default_factory=ProfilerSection)
    parallelism: ParallelismSection = field(default_factory=ParallelismSection)
    activation_checkpoint: ActivationCheckpointSection = field(default_factory=ActivationCheckpointSection)
    compile: CompileSection = field(default_factory=CompileSection)
    comm: CommSection = field(default_factory=CommSection)
    debug: DebugSection = field(default_factory=DebugSection)
    report: ReportSection = field(default_factory=ReportSection)

    @property
    def shape(self) -> ModelShape:
        """Sizes of the model: the flavor's, with the overrides of [model]."""
        model, flavor = self.model, SHAPES[self.model.family][self.model.flavor]
        shape = replace(
            flavor,
            num_layers=model.num_layers or flavor.num_layers,
            vocab_size=model.vocab_size or flavor.vocab_size,
        )
        if model.family != "gpt":
            return shape
        num_heads, dim = model.num_heads or flavor.num_heads, model.dim or flavor.dim
        return replace(
            shape,
            num_heads=num_heads,
            num_kv_heads=model.num_kv_heads or num_heads,
            head_dim=dim // num_heads,
            dim=dim,
        )

    @property
    def freeze_step(self) -> int:
        """Optimizer steps done before heads are frozen; the freeze comes before step `freeze_step + 1`."""
        # 0.29 of 100 steps is 29: the fraction counts as the decimal that was written, not as its binary neighbour
        return self.saf.step or int(Fraction(str(self.saf.fraction)) * self.training.steps)

    @property
    def freezes_at_end(self) -> bool:
        """Whether heads are frozen after the last step, so that no training follows."""
        return self.saf.enable and self.freeze_step == self.training.steps

    def tokens_per_step(self, data_parallel: int) -> int:
        """Return the tokens in one optimizer step, over the `data_parallel` ranks that read different sequences."""
        training = self.training
        local = training.local_batch_size * data_parallel
        sequences = training.global_batch_size if training.global_batch_size > 0 else local
        return sequences * training.seq_len

    @property
    def validation_cells(self) -> list[tuple[int, int]]:
        """Generated data: (length, pairs) of each set that is validated on; pairs are 0 for class tokens."""
        lengths = self.validator.lengths or (self.training.seq_len,)
        pairs = (self.validator.pairs or (self.data.pairs,)) if self.data.kind == "mqar" else (0,)
        return [(length, number) for length in lengths for number in pairs]

    @property
    def max_seq_len(self) -> int:
        """Length of the longest sequence that the model must support, in training and validation."""
        return max((self.training.seq_len, *self.validator.lengths))

    @property
    def data_source(self) -> str:
        """Where the sequences come from, as text for logs and records."""
        data = self.data
        if data.from_files:
            return f"{data.path} ({data.kind})"
        if data.kind == "mqar":
            kind = "mqar of zoology" if data.zoology else "mqar"
            return f"generated {kind}, {data.pairs} pairs in {self.training.seq_len} tokens"
        return data.path if data.kind == "tokens" else f"generated class tokens, {data.classes} classes"

    @property
    def schedule_steps(self) -> int:
        """Length of the learning-rate schedule in steps."""
        return self.lr_scheduler.total_steps or self.training.steps

    @property
    def calibration_batch_size(self) -> int:
        """Sequences that a rank calibrates at once."""
        return self.saf.calibration_batch_size or self.training.local_batch_size

    @property
    def circuit_groups(self) -> tuple[CircuitGroup, ...]:
        """All factors on learning rates: that of the short form, if it has an effect, and `circuits.group`."""
        circuits = self.circuits
        if not self.scales_qk:
            return circuits.group
        short_form = CircuitGroup(
            match="qk",
            layers=circuits.layers,
            factor=circuits.qk_lr_ratio,
            schedule=circuits.qk_lr_schedule,
            factor_end=circuits.qk_lr_ratio_end,
            hold_steps=circuits.qk_lr_hold_steps,
            ramp_steps=circuits.qk_lr_ramp_steps,
        )
        return (short_form, *circuits.group)

    @property
    def scales_qk(self) -> bool:
        """Whether the QK circuit has a learning rate of its own at some step."""
        return self.circuits.qk_lr_schedule != "constant" or self.circuits.qk_lr_ratio != 1.0
