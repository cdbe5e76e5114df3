"""Makes the runs of a study: which runs there are, which runs each waits for, and the configuration of each.

For each seed there is a chain of parents, one for each step from which arms branch, and a run for each arm. An arm goes
on from the last checkpoint of its parent: same weights, moments, data order and schedule. What an arm takes from
another arm (heads, seconds, tokens) is known only when that arm has finished. Until then, a stand-in of the right size
is used, so that the configuration can be checked before anything is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from saf_titan.config import (
    COMMAND_LINE,
    ConfigError,
    Problem,
    RunConfig,
    Table,
    check_world_size,
    data_parallel_size,
    load_config,
)
from saf_titan.fields.step_folders import is_complete, step_of
from saf_titan.heads.counts import head_count
from saf_titan.heads.names import head_name
from saf_titan.study.checkpoints import newest_checkpoint
from saf_titan.study.folder import folder_problems
from saf_titan.study.load import arm_source, folder_name
from saf_titan.study.references import reference_problems
from saf_titan.study.runs import Found, Known, StudyRun
from saf_titan.study.saving import saving_problem
from saf_titan.study.schema import Arm, Study

Settings = dict[str, Any]
"""Sections of a run's configuration, as a TOML file holds them."""


class StudyPlan:
    """All runs of a study in the order in which they are worked on.

    Args:
        out: folder of all runs.
        given: settings of all runs, from the command line.
        arms, seeds: names and seeds to work on; empty for all. The baseline and the arms that a chosen arm refers to
            are added.
        faults: faults of the file that `read_study` has found; `study` is then its sound part.

    Raises:
        ConfigError: `faults` and all faults of the runs, together.
    """

    def __init__(
        self,
        study: Study,
        out: Path,
        given: Table | None = None,
        *,
        arms: Sequence[str] = (),
        seeds: Sequence[int] = (),
        faults: Sequence[Problem] = (),
    ) -> None:
        self.study, self.out = study, out
        self.seeds = tuple(dict.fromkeys(seeds)) or study.seeds
        self._source = str(study.file)
        self._given = given or Table({}, COMMAND_LINE)
        problems = [*faults, *folder_problems(out, study.file.stem)]
        if repeated := [seed for seed in seeds if seeds.count(seed) > 1]:
            problems.append(Problem(COMMAND_LINE, "--seeds", str(repeated[0]), "is given twice; give it once"))
        self.arms = self._chosen(arms, problems)
        try:
            self._base = self._load({}, self._source)
        except ConfigError as error:
            raise ConfigError(dict.fromkeys([*problems, *error.problems, *self._faulty_settings()])) from None
        self.runs = [run for seed in self.seeds for run in self._runs_of(seed)]
        references = [run.references["seconds_of"] for run in self.runs if "seconds_of" in run.references]
        # arms that are compared by time are validated after their clock has stopped
        self._timed = {run.name for run in references} | {arm.name for arm in self.arms if arm.seconds_of}
        problems += self._faults_of_runs()
        if problems:
            # runs that differ by their seed share their faults
            raise ConfigError(dict.fromkeys(problems))

    def of(self, arm: str, seed: int) -> StudyRun:
        """Return the run of an arm with a seed."""
        return next(run for run in self.runs if run.arm is not None and (run.name, run.seed) == (arm, seed))

    def config(self, run: StudyRun, known: Known = lambda run: None) -> RunConfig:
        """Return the configuration of a run.

        known: returns what another run has found; where it returns None, a stand-in of the right size is used.

        Raises:
            ConfigError: all faults of the configuration.
        """
        return self._load(self._settings(run), self._place(run), self._own_keys(run, known))

    def evaluation_config(self, run: StudyRun, last_step: int) -> RunConfig:
        """Return the configuration of a run that measures the final held-out loss of `run` and trains nothing.

        last_step: the step at which `run` ended.
        """
        own: Settings = {
            "dump_folder": str(run.evaluation),
            "training": {"steps": last_step},
            "lr_scheduler": {"total_steps": 0, "warmup_steps": 0},
            "saf": {"enable": False},
            "validator": {"enable": True},
            "checkpoint": {"initial_load_path": str(self._checkpoint_of(run.folder, last_step))},
            "report": {"enable": False},
        }
        self.study.set_seeds(own, run.seed)
        # the checkpoint has the patterns already, so the keys of [saf] would have no effect
        settings = {name: section for name, section in self._settings(run).items() if name != "saf"}
        return self._load(settings, self._place(run), own)

    def weights_checkpoint(self, run: StudyRun) -> Path | None:
        """Return the checkpoint that gives a run its weights alone; None if it does not exist yet."""
        assert run.checkpoint is not None
        return newest_checkpoint(run.checkpoint, self._base.checkpoint.folder)

    def tokens(self, config: RunConfig, steps: int) -> int:
        """Return the number of tokens in `steps` optimizer steps."""
        return steps * config.tokens_per_step(data_parallel_size(config, self.study.launch.world_size))

    def _load(self, settings: Settings, place: str, own: Settings | None = None) -> RunConfig:
        """Load the base configuration, changed by [set], `settings`, the command line and `own`, in this order.

        own: keys that the study itself sets; None for a configuration of no run, which freezes no heads.
        """
        own = {"saf": {"enable": False}} if own is None else own
        tables = [Table(self.study.set, f"{self._source}: [set]"), Table(settings, place), self._given]
        return load_config(self.study.config, tables=[*tables, Table(own, f"{place}, set by the study")])

    def _settings(self, run: StudyRun) -> Settings:
        return self.study.parent.settings if run.arm is None else run.arm.settings

    def _place(self, run: StudyRun) -> str:
        return f"{self._source}: [parent]" if run.arm is None else arm_source(self._source, run.name)

    def _chosen(self, names: Sequence[str], problems: list[Problem]) -> list[Arm]:
        """Return these arms, those that they refer to, and the baseline, in order; unknown names become problems."""
        known = [arm.name for arm in self.study.arm]
        for unknown in dict.fromkeys(name for name in names if name not in known):
            message = f"is no arm of {self._source}; it has {', '.join(known)}"
            problems.append(Problem(COMMAND_LINE, "--arms", unknown, message))
        if not known:
            return []
        wanted = {self.study.baseline_name, *(set(names) & set(known))} if names else set(known)
        while more := {other for name in wanted for other in self.study.arm_of(name).references.values()} - wanted:
            wanted |= more
        return [arm for arm in self.study.arm if arm.name in wanted]

    def _branch_step(self, arm: Arm) -> int:
        """Return the number of optimizer steps before the arm begins."""
        if self.study.weights_of(arm):
            return 0
        if arm.branch_step or arm.branch_fraction >= 0:
            step, fraction = arm.branch_step, arm.branch_fraction
        else:
            step, fraction = self.study.branch_step, self.study.branch_fraction
        return step or int(Fraction(str(fraction)) * self._base.training.steps)

    def _runs_of(self, seed: int) -> Iterator[StudyRun]:
        parents: dict[int, StudyRun] = {}
        previous: StudyRun | None = None
        branching = [arm for arm in self.arms if not self.study.weights_of(arm)]
        steps = set() if self.study.parent.run else {self._branch_step(arm) for arm in branching}
        for step in sorted(steps - {0}):
            previous = StudyRun(
                name=f"parent to step {step}",
                seed=seed,
                folder=self.out / f"parent-{step}-{seed}",
                first_step=previous.last_step if previous else 0,
                last_step=step,
                parent=previous,
                checkpoint=self._checkpoint_of(previous.folder, previous.last_step) if previous else None,
            )
            parents[step] = previous
            yield previous
        runs: dict[str, StudyRun] = {}
        while len(runs) < len(self.arms):
            for arm in self.arms:
                if arm.name not in runs and set(arm.references.values()) <= runs.keys():
                    runs[arm.name] = self._arm_run(arm, seed, parents, runs)
        yield from (runs[arm.name] for arm in self.arms)

    def _arm_run(self, arm: Arm, seed: int, parents: dict[int, StudyRun], earlier: dict[str, StudyRun]) -> StudyRun:
        step = self._branch_step(arm)
        parent = parents.get(step)
        checkpoint = None
        if weights := self.study.weights_of(arm):
            checkpoint = Path(weights.replace("{seed}", str(seed)))
        elif self.study.parent.run:
            step, checkpoint = self._given_checkpoint(step, seed)
        elif parent is not None:
            checkpoint = self._checkpoint_of(parent.folder, step)
        return StudyRun(
            name=arm.name,
            seed=seed,
            folder=self.out / f"{folder_name(arm.name)}-{seed}",
            arm=arm,
            first_step=step,
            parent=parent,
            checkpoint=checkpoint,
            takes_weights_alone=bool(weights),
            references={key: earlier[name] for key, name in arm.references.items()},
        )

    def _checkpoint_of(self, folder: Path, step: int) -> Path:
        return folder / self._base.checkpoint.folder / f"step-{step}"

    def _given_checkpoint(self, step: int, seed: int) -> tuple[int, Path]:
        """Return the step and the folder of the checkpoint of a parent that was trained before."""
        path = Path(self.study.parent.run.replace("{seed}", str(seed)))
        of_path = step_of(path)
        return (step, self._checkpoint_of(path, step)) if of_path is None else (of_path, path)

    def _own_keys(self, run: StudyRun, known: Known) -> Settings:
        """Return the keys that the study itself sets, whatever the file says."""
        own: Settings = {"dump_folder": str(run.folder), "training": {}, "lr_scheduler": {}, "saf": {}}
        # `saving_problem` reports a study that sets it to false, once and not for each run
        own["checkpoint"] = {"enable": True}
        self.study.set_seeds(own, run.seed)
        if run.checkpoint is not None:
            path = self.weights_checkpoint(run) if run.takes_weights_alone else None
            own["checkpoint"]["initial_load_path"] = str(path or run.checkpoint)
            own["checkpoint"]["initial_load_model_only"] = run.takes_weights_alone
        if run.arm is None or self.study.keep_checkpoints != "all":
            own["checkpoint"]["keep_latest_k"] = 2
        if run.arm is None:
            whole = self._load(self._settings(run), self._place(run))
            own["training"]["steps"] = run.last_step
            # the schedule is that of the whole run
            own["lr_scheduler"]["total_steps"] = whole.schedule_steps
            own["saf"] |= {"enable": False, "matched_seconds": 0.0}
            return own
        given = {key for source in (self._settings(run), self._given.values) for key in source.get("saf", {})}
        if "enable" not in given:
            own["saf"]["enable"] = run.arm.freezes
        if (
            run.arm.freezes
            and run.first_step
            and not {"step", "fraction"} & (given | self.study.set.get("saf", {}).keys())
        ):
            own["saf"]["step"] = run.first_step
        if run.name in self._timed:
            own["validator"] = {"enable": False}
        if "heads_of" in run.references:
            own["saf"] |= self._heads_of(run, known)
        if "seconds_of" in run.references:
            reference = known(run.references["seconds_of"])
            own["saf"]["matched_seconds"] = reference.seconds if reference else 1.0
        if "tokens_of" in run.references and (reference := known(run.references["tokens_of"])):
            steps = self._steps_for_tokens_of(run, reference)
            own["training"]["steps"] = own["lr_scheduler"]["total_steps"] = steps
        return own

    def _heads_of(self, run: StudyRun, known: Known) -> Settings:
        """Return the keys of [saf] that freeze the heads of another arm, or the first ones if the arm sets a rate."""
        assert run.arm is not None
        other = run.references["heads_of"]
        config = self._load(self._settings(run), self._place(run))
        total = config.shape.total_heads
        reference = known(other)
        if reference is not None:
            heads = reference.heads
        else:
            wanted = head_count(total, self.config(other, known).saf.rate, config.saf.rounding)
            per_layer = config.shape.num_heads
            heads = tuple(head_name(index // per_layer, index % per_layer) for index in range(wanted))
        asked = "rate" in self._settings(run).get("saf", {})
        number = head_count(total, config.saf.rate, config.saf.rounding) if asked else len(heads)
        if number > len(heads):
            message = f"means {number} heads, and {other.label} has {len(heads)} static ones; lower it"
            raise ConfigError([Problem(self._place(run), "saf.rate", str(config.saf.rate), message)])
        return {"selector": "list", "heads": list(heads[:number]), "rate": number / total}

    def _steps_for_tokens_of(self, run: StudyRun, reference: Found) -> int:
        other = run.references["tokens_of"]
        config, its_config = self._load(self._settings(run), self._place(run)), self.config(other)
        tokens = self.tokens(its_config, reference.step - other.first_step)
        return run.first_step + max(1, round(tokens / self.tokens(config, 1)))

    def _faulty_settings(self) -> Iterator[Problem]:
        """Yield the faults of the settings of the parent and of each arm, checked one by one."""
        parts = [(self.study.parent.settings, f"{self._source}: [parent]")]
        parts += [(arm.settings, arm_source(self._source, arm.name)) for arm in self.arms]
        for settings, place in parts:
            try:
                self._load(settings, place)
            except ConfigError as error:
                yield from error.problems

    def _faults_of_runs(self) -> Iterator[Problem]:
        """Yield all faults of the runs."""
        try:
            last = self._load(self.study.parent.settings, f"{self._source}: [parent]").training.steps
        except ConfigError as error:
            yield from error.problems
            last = sys.maxsize
        if not self.study.parent.run:
            yield from self._late_branches(last)
        base = ({"checkpoint": {"enable": self._base.checkpoint.enable}}, self.study.config)
        for run in self.runs:
            own = (self._settings(run), self._place(run))
            levels = [(self._given.values, COMMAND_LINE), own, (self.study.set, f"{self._source}: [set]"), base]
            if unsaved := saving_problem(levels):
                yield unsaved
            if not self.study.parent.run and max(run.first_step, run.last_step) > last:
                # its other faults would follow from the late branch, which is reported already
                continue
            try:
                config = self.config(run)
                check_world_size(config, self.study.launch.world_size)
            except ConfigError as error:
                yield from error.problems
                continue
            yield from self._problems(run, config)

    def _late_branches(self, last: int) -> Iterator[Problem]:
        """Yield a problem for each arm that would begin after the end of its parent."""
        for arm in self.arms:
            if (step := self._branch_step(arm)) > last:
                message = f"is beyond the end of the parent, whose training.steps is {last}"
                place = arm_source(self._source, arm.name) if arm.branch_step else self._source
                yield Problem(place, "branch_step", str(step), message)

    def _problems(self, run: StudyRun, config: RunConfig) -> Iterator[Problem]:
        place = self._place(run)
        if run.arm is None:
            return
        if run.first_step > config.training.steps:
            message = f"the arm would begin after step {run.first_step}, and training.steps is {config.training.steps}"
            yield Problem(place, "branch_step", str(run.first_step), message)
        given = run.checkpoint if run.parent is None and not run.takes_weights_alone else None
        if given is not None and not is_complete(given):
            message = f"has no complete checkpoint of step {run.first_step}: {given} does not exist or is cut short"
            yield Problem(f"{self._source}: [parent]", "run", f'"{self.study.parent.run}"', message)
        if config.saf.enable and config.freeze_step < run.first_step:
            message = f"is before the branch of the arm, after step {run.first_step}; freeze there or later"
            yield Problem(place, "saf.step", str(config.freeze_step), message)
        source = run.references.get("heads_of")
        freezes = source is None or self.config(source).saf.enable
        yield from reference_problems(run, place, self._settings(run).get("saf", {}), source_freezes=freezes)
