"""The keys of a study file as dataclasses: base configuration, parent, seeds, arms and columns. Imports no torch.

The string under a field is its documentation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from saf_titan.fields.choices import OneOf
from saf_titan.fields.ranges import FRACTION, NOT_NEGATIVE, POSITIVE, Range

COLUMNS = {
    "final": "held-out loss at the end, nats per token",
    "change": "final loss minus that of the baseline with the same seed, nats per token",
    "perplexity": "the change as a change of perplexity in %, with its 95 % interval",
    "published": "the published change of perplexity in %, where the study file holds one",
    "accuracy": "right answers in %, the mean over all lengths and numbers of pairs that were validated on",
    "jump": "held-out loss right after the freeze minus right before it, nats per token",
    "updates": "optimizer steps after the branch",
    "tokens": "tokens after the branch",
    "seconds": "wall time after the branch; that of an arm with `seconds_of` includes calibration and fit",
    "before": "optimizer steps per second before the freeze, median",
    "after": "optimizer steps per second after the freeze, median",
    "speedup": "after / before, where it can be measured",
    "calibrate": "seconds of calibration",
    "fit": "seconds of a freeze without its calibration",
    "memory": "peak memory of the first rank, GiB",
    "heads": "static heads at the end",
}
"""Columns of the table, each with its meaning."""

Column = Annotated[str, OneOf(COLUMNS)]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How each run is started."""

    nproc_per_node: Annotated[int, POSITIVE] = 1
    """Ranks on a node. 1 on one node: a plain process; else torchrun."""
    nodes: Annotated[int, POSITIVE] = 1
    """Nodes of one run."""
    rendezvous: str = ""
    """host:port of torchrun's rendezvous; needed for several nodes."""
    prefix: tuple[str, ...] = ()
    """Words before the command, which start it on every node: ["srun", "--ntasks-per-node=1"]."""
    device: Literal["auto", "cpu"] = "auto"
    """cpu: train on the CPU of a machine that has an accelerator."""
    shutdown_timeout: Annotated[int, POSITIVE] = 600
    """Seconds that torchrun gives its ranks to end their step and save, after a stop was requested."""

    @property
    def world_size(self) -> int:
        return self.nproc_per_node * self.nodes


@dataclass(frozen=True, kw_only=True)
class Parent:
    """What the arms start from. Sections of a run's configuration in this table hold for the parent alone."""

    run: str = ""
    """Folder of a run, or of one of its checkpoints; {seed} in it stands for the seed. Empty: the study trains the
    parent, with ordinary attention."""
    weights: str = ""
    """Folder of a run, or of one of its checkpoints, whose weights and static heads each arm starts with. Each arm is
    then a new run, from step 0 on, with fresh moments, on any data."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sections of a run's configuration."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to go on from the parent.

    Sections of a run's configuration in this table are the arm's own settings. An arm that sets a key of [saf] freezes
    heads; any other arm keeps its heads as they are.
    """

    name: str
    """Name in tables and figures. It also names the folders of its runs; all but letters and digits become "_"."""
    branch_step: Annotated[int, NOT_NEGATIVE] = 0
    """Optimizer steps of the parent before this arm begins. 0: `branch_fraction` tells, or the study's keys."""
    branch_fraction: Annotated[float, Range(low=0, high=1, also=(-1,))] = -1.0
    """The same as a share of the base configuration's training.steps. 0: the arm begins at the first step. -1: the
    study's."""
    weights: str = ""
    """The same as `parent.weights`, for this arm alone."""
    heads_of: str = ""
    """Another arm, whose heads this arm freezes, seed by seed; with a lower saf.rate, those that were chosen first."""
    seconds_of: str = ""
    """Another arm: train for as many seconds as that arm took, instead of training.steps."""
    tokens_of: str = ""
    """Another arm: train on as many tokens as that arm did, instead of training.steps."""
    published: float = math.nan
    """Published change of perplexity against the baseline in %; nan if there is none."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sections of a run's configuration."""

    @property
    def freezes(self) -> bool:
        return bool(self.settings.get("saf") or self.heads_of)

    @property
    def references(self) -> dict[str, str]:
        """Key, such as "heads_of" -> name of the arm that it refers to."""
        keys = ("heads_of", "seconds_of", "tokens_of")
        return {key: name for key in keys if (name := getattr(self, key))}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study file."""

    config: str
    """The base configuration: a TOML file of a run, or the name of one that comes with the package."""
    title: str = ""
    """The question of the study in one line, for the page."""
    seeds: tuple[int, ...] = (1337,)
    """Every arm is trained once for each seed, and compared with the baseline of the same seed."""
    seed_keys: tuple[str, ...] = ("data.seed", "debug.seed", "saf.seed")
    """Keys that are set to the seed: by default those of the order of the data, of the initial weights, and of what
    selectors and contents draw."""
    baseline: str = ""
    """The arm that others are compared with. Empty: the first one."""
    branch_step: Annotated[int, NOT_NEGATIVE] = 0
    """Optimizer steps of the parent before the arms begin. 0: `branch_fraction` tells."""
    branch_fraction: Annotated[float, FRACTION] = 0.5
    """The same as a share of the base configuration's training.steps, rounded down. 0: arms begin at the first step."""
    columns: tuple[Column, ...] = (
        "final",
        "perplexity",
        "published",
        "jump",
        "updates",
        "seconds",
        "speedup",
        "memory",
    )
    """Columns of the table, in this order; the csv and json files and the page have all columns."""
    keep_checkpoints: Literal["last", "none", "all"] = "last"
    """Checkpoints of a finished arm that stay on disk. all: as the configuration's [checkpoint] says. Checkpoints that
    arms branch from stay in any case."""
    published: str = ""
    """The source of the published numbers."""
    launch: Launch = field(default_factory=Launch)
    """[launch]"""
    parent: Parent = field(default_factory=Parent)
    """[parent]"""
    arm: tuple[Arm, ...] = ()
    """[[arm]]"""
    set: dict[str, Any] = field(default_factory=dict)
    """[set]: sections of a run's configuration that hold for all runs."""
    file: Path = Path()
    """Path of the study file."""

    @property
    def baseline_name(self) -> str:
        return self.baseline or self.arm[0].name

    def weights_of(self, arm: Arm) -> str:
        """Return the path of the run or checkpoint that gives an arm its weights alone, with {seed} in it.

        It is empty if the arm goes on from a parent or starts with random weights.
        """
        return arm.weights or self.parent.weights

    def set_seeds(self, settings: dict[str, Any], seed: int) -> None:
        """Set all `seed_keys` to `seed`; `settings` are sections of a run's configuration."""
        for key in self.seed_keys:
            section, _, name = key.rpartition(".")
            settings.setdefault(section, {})[name] = seed

    def arm_of(self, name: str) -> Arm:
        return next(arm for arm in self.arm if arm.name == name)
