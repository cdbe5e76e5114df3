"""Reads a study file and checks it; all of its faults are reported at once, each with file, key, value and remedy.

Sections of a run's configuration, such as [saf], are not checked here: `study.plan` checks them together with the base
configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from saf_titan.config import ConfigError, Problem, RunConfig
from saf_titan.config.packaged import STUDIES, find_config
from saf_titan.config.toml_file import read_toml
from saf_titan.fields.convert import Mismatch, convert, field_types, is_section, to_toml_value
from saf_titan.fields.errors import nearest
from saf_titan.study.schema import Arm, Launch, Parent, Study

_SECTIONS = {name: field_types(hint) for name, hint in field_types(RunConfig).items() if is_section(hint)}
"""Sections of a run's configuration, each with its keys and their types."""

_KEYS = {f"{section}.{name}": hint for section, fields in _SECTIONS.items() for name, hint in fields.items()}
"""Dotted keys of a run's configuration."""

_OWN = {"settings", "file"}
"""Fields of the dataclasses that are not keys of the file."""


def load_study(path: str | Path) -> Study:
    """Read a study file, or the study of that name that comes with the package.

    Raises:
        ConfigError: all faults of the file together.
    """
    study, problems = read_study(path)
    if problems:
        raise ConfigError(problems)
    return study


def read_study(path: str | Path) -> tuple[Study, list[Problem]]:
    """Read a study file; return its sound part and all of its faults.

    With the sound part, a caller can check the runs of a faulty study too and report all faults together.

    Raises:
        ConfigError: the file cannot be read or names no base configuration, so nothing else can be checked.
    """
    problems: list[Problem] = []
    file = find_config(Path(path), STUDIES)
    table = read_toml(file, problems, STUDIES)
    if problems:
        raise ConfigError(problems)
    source = str(file)
    parts: dict[str, Any] = {
        "launch": Launch(**_section(Launch, table.pop("launch", {}), f"{source}: [launch]", problems)),
        "parent": Parent(**_section(Parent, table.pop("parent", {}), f"{source}: [parent]", problems)),
        "arm": tuple(_arms(table.pop("arm", []), source, problems)),
        "set": _set(table.pop("set", {}), source, problems),
    }
    values = _values(Study, table, source, problems, skipped=frozenset(parts))
    if not values.get("config") and not any(problem.key == "config" for problem in problems):
        problems.append(Problem(source, "config", "", "is missing: give the TOML file of a run, or a packaged name"))
    study = Study(**{"config": "", **values}, **parts, file=file)
    problems += _conflicts(study)
    if not study.config:
        raise ConfigError(problems)
    return _sound_part(study) if problems else study, problems


def _sound_part(study: Study) -> Study:
    """Return the study without the keys and arms that `_conflicts` reports or that could not be read."""
    arms: dict[str, Arm] = {}
    for arm in study.arm:
        if arm.name:
            arms.setdefault(folder_name(arm.name), arm)
    names = {arm.name for arm in arms.values()}
    waiting = _in_circles(study)
    kept = []
    for arm in arms.values():
        wrong: dict[str, Any] = {
            key: ""
            for key, name in arm.references.items()
            if name not in names or name == arm.name or {name, arm.name} <= waiting
        }
        if arm.seconds_of and arm.tokens_of:
            wrong["tokens_of"] = ""
        kept.append(replace(arm, **wrong))
    return replace(
        study,
        arm=tuple(kept),
        baseline=study.baseline if study.baseline in names else "",
        seeds=tuple(dict.fromkeys(study.seeds)) or Study(config="").seeds,
        seed_keys=tuple(key for key in study.seed_keys if _seed_key_fault(key, study.seeds) is None),
    )


def _seed_key_fault(key: str, seeds: Sequence[int]) -> str | None:
    """Return what is wrong with one of `seed_keys`; None if it is a key that can have every seed as its value."""
    if key not in _KEYS:
        match = nearest(key, _KEYS)
        return f'holds "{key}", which is no key of a run; ' + (
            f"did you mean {match}?" if match else "name keys such as data.seed"
        )
    for seed in seeds:
        try:
            convert(seed, _KEYS[key])
        except Mismatch as mismatch:
            return f"holds {key}, which cannot be the seed {seed}: it {mismatch}"
    return None


def _arms(tables: Any, source: str, problems: list[Problem]) -> Iterator[Arm]:
    if not isinstance(tables, list):
        problems.append(Problem(source, "arm", to_toml_value(tables), "must be a list of tables: write [[arm]]"))
        return
    for number, table in enumerate(tables, start=1):
        name = table.get("name") if isinstance(table, dict) else None
        place = arm_source(source, name) if isinstance(name, str) and name else f"{source}: arm {number}"
        if isinstance(table, dict) and "name" not in table:
            problems.append(Problem(place, "name", "", "is missing: give the arm a name of its own"))
        elif name == "":
            problems.append(Problem(place, "name", '""', "must not be empty: give the arm a name of its own"))
        yield Arm(**{"name": "", **_section(Arm, table, place, problems)})


def arm_source(source: str, name: str) -> str:
    """Return the place of an arm in a study file, for errors."""
    return f'{source}: arm "{name}"'


def _set(table: Any, source: str, problems: list[Problem]) -> dict[str, Any]:
    if isinstance(table, dict):
        return table
    problems.append(Problem(source, "set", to_toml_value(table), "must be a section: write [set]"))
    return {}


def _section(kind: type, table: Any, source: str, problems: list[Problem]) -> dict[str, Any]:
    """Read [launch], [parent] or an [[arm]]; sections of a run's configuration in it become the field `settings`."""
    if not isinstance(table, dict):
        problems.append(Problem(source, "", to_toml_value(table), "must be a table"))
        return {}
    takes_settings = "settings" in field_types(kind)
    settings = {name: table[name] for name in table if takes_settings and name in _SECTIONS}
    own = {name: value for name, value in table.items() if name not in settings}
    return _values(kind, own, source, problems) | ({"settings": settings} if takes_settings else {})


def _values(
    kind: type, table: dict[str, Any], source: str, problems: list[Problem], *, skipped: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Convert the keys of a table to the types of the fields of `kind`.

    skipped: fields that are read elsewhere.
    """
    hints = {name: hint for name, hint in field_types(kind).items() if name not in _OWN | skipped}
    sections = [*_SECTIONS] if "settings" in field_types(kind) else sorted(skipped)
    values = {}
    for key, value in table.items():
        if key not in hints:
            match = nearest(key, [*hints, *sections])
            hint = f"did you mean {match}?" if match else f"the keys are {', '.join([*hints, *sections])}"
            if key in _SECTIONS and skipped:
                hint = f"settings of all runs stand in [set]: write [set.{key}]"
            problems.append(Problem(source, key, _shown(value), f"unknown key; {hint}"))
            continue
        try:
            values[key] = convert(value, hints[key])
        except Mismatch as mismatch:
            problems.append(Problem(source, key, _shown(value), str(mismatch)))
    return values


def _shown(value: Any) -> str:
    text = to_toml_value(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _conflicts(study: Study) -> Iterator[Problem]:
    """Yield a problem for each value of the study file that its other values rule out."""
    source = str(study.file)

    def problem(key: str, value: Any, message: str, place: str = source) -> Problem:
        return Problem(place, key, _shown(value), message)

    if not study.arm:
        yield Problem(source, "arm", "", "is missing: write one [[arm]] for each way to train")
        return
    if not study.seeds:
        yield problem("seeds", [], "must hold at least one seed")
    if repeated := _repeated(study.seeds):
        yield problem("seeds", list(study.seeds), f"holds {repeated} twice")
    for key in dict.fromkeys(study.seed_keys):
        if fault := _seed_key_fault(key, study.seeds):
            yield problem("seed_keys", list(study.seed_keys), fault)
    names = [arm.name for arm in study.arm if arm.name]
    if twice := _repeated(names):
        yield problem("name", twice, "is the name of two arms; every arm needs its own")
    elif twice := _repeated(names, folder_name):
        yield problem(
            "name",
            twice,
            'differs from another arm\'s name only in signs that become "_" in the names of folders; rename one',
        )
    if study.baseline and study.baseline not in names:
        yield problem("baseline", study.baseline, _no_such_arm(study.baseline, names))
    launch = study.launch
    if launch.nodes > 1 and not (launch.rendezvous and launch.prefix):
        yield problem(
            "nodes", launch.nodes, "needs rendezvous = \"HOST:PORT\" and a prefix that starts the command on every "
            'node, such as ["srun", "--ntasks-per-node=1"]', f"{source}: [launch]",
        )  # fmt: skip
    if study.parent.run and study.parent.settings:
        yield problem(
            "run", study.parent.run, "is a parent that is trained already, so the other settings of [parent] have no "
            "effect; remove them", f"{source}: [parent]",
        )  # fmt: skip
    yield from _weights(study)
    if (
        "data.seed" in study.seed_keys
        and study.parent.run
        and "{seed}" not in study.parent.run
        and len(study.seeds) > 1
    ):
        yield problem(
            "run", study.parent.run, "is one parent for several seeds, and a parent's data order cannot be changed; "
            'write {seed} into its path, or set seed_keys = ["saf.seed", "saf.calibration_seed"]',
            f"{source}: [parent]",
        )  # fmt: skip
    for arm in study.arm:
        place = arm_source(source, arm.name)
        for key, name in arm.references.items():
            if name not in names:
                yield problem(key, name, _no_such_arm(name, names), place)
            elif name == arm.name:
                yield problem(key, name, "is the arm itself", place)
        if arm.seconds_of and arm.tokens_of:
            yield problem("seconds_of", arm.seconds_of, "cannot be combined with tokens_of; give one of the two", place)
    yield from _circles(study)


def _weights(study: Study) -> Iterator[Problem]:
    """Yield a problem for each key that has no effect beside `weights`, because arms are then new runs."""
    parent, place = study.parent, f"{study.file}: [parent]"
    remedy = "whose runs begin at step 0; take one away"
    if parent.weights and parent.run:
        message = "cannot be combined with weights: an arm goes on from a checkpoint, or is new with weights; give one"
        yield Problem(place, "run", _shown(parent.run), message)
    if parent.weights and parent.settings:
        message = "gives the weights, so no parent is trained and the other settings of [parent] have no effect"
        yield Problem(place, "weights", _shown(parent.weights), f"{message}; remove them")
    if parent.weights and study.branch_step:
        message = f"has no effect beside parent.weights, {remedy}"
        yield Problem(str(study.file), "branch_step", str(study.branch_step), message)
    for arm in study.arm:
        for key, value in (("branch_step", arm.branch_step), ("branch_fraction", max(0.0, arm.branch_fraction))):
            if value and study.weights_of(arm):
                message = f"has no effect beside weights, {remedy}"
                yield Problem(arm_source(str(study.file), arm.name), key, _shown(value), message)


def _no_such_arm(name: str, names: Sequence[str]) -> str:
    match = nearest(name, names)
    return "is no arm; " + (f'did you mean "{match}"?' if match else f"the arms are {', '.join(names)}")


def _repeated(items: Sequence[Any], by: Callable[[Any], Any] = lambda item: item) -> Any:
    """Return an item whose value of `by` occurs twice; None if there is none."""
    counts = Counter(map(by, items))
    return next((item for item in items if counts[by(item)] > 1), None)


def folder_name(arm: str) -> str:
    """Return the name of an arm as part of a file name: all but letters and digits are replaced by "_"."""
    return "".join(char if char.isalnum() else "_" for char in arm)


def _in_circles(study: Study) -> set[str]:
    """Return the names of the arms that could never start, because they wait for each other."""
    waits = {arm.name: set(arm.references.values()) for arm in study.arm}
    while ready := [name for name, others in waits.items() if not others & waits.keys()]:
        waits = {name: others for name, others in waits.items() if name not in ready}
    return {name for name, others in waits.items() if name not in others}


def _circles(study: Study) -> Iterator[Problem]:
    """Yield one problem if arms wait for each other."""
    circle = _in_circles(study)
    for arm in study.arm:
        for key, other in arm.references.items() if arm.name in circle else ():
            if other in circle:
                names = ", ".join(other.name for other in study.arm if other.name in circle)
                message = f"is circular: {names} wait for each other"
                yield Problem(arm_source(str(study.file), arm.name), key, _shown(other), message)
                return
