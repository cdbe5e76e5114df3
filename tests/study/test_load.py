"""Study files: what they mean, and every fault at once. Covers study/schema.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config import ConfigError
from saf_titan.study.load import load_study

ARMS = '[[arm]]\nname = "ordinary"\n[[arm]]\nname = "mean"\nsaf.rate = 0.5\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_study(write(folder, text))
    return str(error.value).splitlines()


def test_an_arm_that_sets_a_key_of_saf_freezes(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, f'config = "debug_cpu"\n{ARMS}'))
    assert [(arm.name, arm.freezes) for arm in study.arm] == [("ordinary", False), ("mean", True)]
    assert study.arm[1].settings == {"saf": {"rate": 0.5}}
    assert study.baseline_name == "ordinary"


def test_all_faults_of_a_file_at_once(tmp_path: Path) -> None:
    text = """
    seeds = [1, 1]
    baseline = "ordinry"
    branch_fraction = 1.5
    seed = 3
    [launch]
    nproc_per_nod = 2
    [[arm]]
    name = "ordinary"
    [[arm]]
    name = "prune"
    heads_of = "ordinari"
    brunch_step = 4
    [[arm]]
    name = "timed"
    seconds_of = "timed"
    tokens_of = "ordinary"
    [[arm]]
    saf.rate = 0.5
    """
    found = problems(tmp_path, text)
    file = tmp_path / "study.toml"
    for place, fault in (
        ("", "seed = 3: unknown key; did you mean seeds?"),
        ("", "branch_fraction = 1.5: must be a number, at least 0 and at most 1"),
        ("", "config: is missing: give the TOML file of a run, or a packaged name"),
        (": [launch]", "nproc_per_nod = 2: unknown key; did you mean nproc_per_node?"),
        (': arm "prune"', "brunch_step = 4: unknown key; did you mean branch_step?"),
        (": arm 4", "name: is missing: give the arm a name of its own"),
        ("", "seeds = [1, 1]: holds 1 twice"),
        ("", 'baseline = "ordinry": is no arm; did you mean "ordinary"?'),
        (': arm "prune"', 'heads_of = "ordinari": is no arm; did you mean "ordinary"?'),
        (': arm "timed"', 'seconds_of = "timed": is the arm itself'),
        (': arm "timed"', 'seconds_of = "timed": cannot be combined with tokens_of; give one of the two'),
    ):
        assert f"{file}{place}: {fault}" in found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('config = "debug_cpu"', "arm: is missing: write one [[arm]] for each way to train"),
        (
            f'config = "debug_cpu"\n[launch]\nnodes = 2\n{ARMS}',
            'nodes = 2: needs rendezvous = "HOST:PORT" and',
        ),
        (f'config = "debug_cpu"\n{ARMS}[[arm]]\nname = "mean"', 'name = "mean": is the name of two arms'),
        (f'config = "debug_cpu"\n{ARMS}[[arm]]\nname = "me an"\n[[arm]]\nname = "me-an"', "differs from another arm's"),
        (
            'config = "debug_cpu"\n[[arm]]\nname = "a"\nheads_of = "b"\n[[arm]]\nname = "b"\nheads_of = "a"',
            "is circular: a, b wait for each other",
        ),
        (f'config = "debug_cpu"\nseeds = [1, 2]\n[parent]\nrun = "x"\n{ARMS}', "is one parent for several seeds"),
        (f'config = "debug_cpu"\ntraining.steps = 3\n{ARMS}', "write [set.training]"),
    ],
)
def test_what_cannot_be_combined(tmp_path: Path, text: str, fault: str) -> None:
    assert fault in "\n".join(problems(tmp_path, text))


def test_a_file_that_does_not_exist_is_looked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; did you mean 124m_4k_controls\?"):
        load_study(tmp_path / "124m_4k_control.toml")


def test_an_empty_name_is_no_name(tmp_path: Path) -> None:
    found = problems(tmp_path, 'config = "debug_cpu"\n[[arm]]\nname = ""\n[[arm]]\nname = ""\n')
    assert [line.partition(": arm ")[2] for line in found] == [
        f'{number}: name = "": must not be empty: give the arm a name of its own' for number in (1, 2)
    ]
