"""From a study to its runs and their configurations. Covers study/runs.py, study/references.py, study/saving.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from saf_titan.config import ConfigError, override_table
from saf_titan.study.__main__ import main
from saf_titan.study.load import load_study
from saf_titan.study.plan import StudyPlan
from saf_titan.study.runs import Found, StudyRun
from tests.e2e.runs import TINY

TEXT = f"""
config = "{TINY}"
seeds = [1, 2]
branch_step = 4
[[arm]]
name = "ordinary"
[[arm]]
name = "early"
branch_fraction = 0.25
saf.rate = 0.25
[[arm]]
name = "mean"
saf.rate = 0.5
[[arm]]
name = "prune"
heads_of = "mean"
saf.content = "prune"
saf.rate = 0.25
[[arm]]
name = "timed"
seconds_of = "ordinary"
saf.rate = 0.25
[[arm]]
name = "longer"
tokens_of = "timed"
"""


def plan_of(folder: Path, text: str = TEXT, *words: str, **options: list[str]) -> StudyPlan:
    (folder / "study.toml").write_text(text)
    return StudyPlan(load_study(folder / "study.toml"), folder / "out", override_table(words), **options)


def test_parents_are_a_chain_and_arms_go_on_from_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    names = ["parent to step 2", "parent to step 4", "ordinary", "early", "mean", "prune", "timed", "longer"]
    assert [run.name for run in plan.runs] == names * 2
    early, late = plan.runs[:2]
    assert (early.first_step, late.first_step, late.parent) == (0, 2, early)
    whole = plan.config(late)
    assert (whole.training.steps, whole.lr_scheduler.total_steps, whole.saf.enable) == (4, 8, False)
    assert whole.checkpoint.initial_load_path == str(tmp_path / "out/parent-2-1/checkpoint/step-2")
    mean = plan.config(plan.of("mean", 2))
    assert (mean.saf.enable, mean.saf.step, mean.saf.rate, mean.training.steps) == (True, 4, 0.5, 8)
    assert (mean.data.seed, mean.debug.seed, mean.saf.seed) == (2, 2, 2)
    assert mean.checkpoint.initial_load_path == str(tmp_path / "out/parent-4-2/checkpoint/step-4")
    assert plan.config(plan.of("early", 1)).saf.step == 2
    assert not plan.config(plan.of("ordinary", 1)).saf.enable


def test_what_an_arm_takes_from_another_one(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    facts = {"mean": Found(("L1H2", "L0H0", "L1H1", "L0H3"), 5.0, 8), "ordinary": Found((), 12.5, 8)}
    facts["timed"] = Found(("L1H2", "L0H0"), 12.0, 11)

    def known(run: StudyRun) -> Found | None:
        return facts.get(run.name)

    prune = plan.config(plan.of("prune", 1), known)
    # a quarter of 8 heads: the first two in the order in which they were chosen
    assert (prune.saf.selector, prune.saf.heads, prune.saf.content) == ("list", ("L1H2", "L0H0"), "prune")
    timed = plan.config(plan.of("timed", 1), known)
    assert timed.saf.matched_seconds == 12.5
    # the ordinary run is its clock: neither looks at held-out data on it
    assert not timed.validator.enable
    assert not plan.config(plan.of("ordinary", 1), known).validator.enable
    assert plan.config(plan.of("mean", 1), known).validator.enable
    longer = plan.config(plan.of("longer", 1), known)
    assert (longer.training.steps, longer.lr_scheduler.total_steps) == (11, 11)


def test_chosen_arms_bring_what_they_refer_to_and_the_baseline(tmp_path: Path) -> None:
    assert [arm.name for arm in plan_of(tmp_path, arms=["prune"]).arms] == ["ordinary", "mean", "prune"]
    with pytest.raises(ConfigError, match="--arms = prone: is no arm of"):
        plan_of(tmp_path, arms=["prone"])


def test_the_command_line_holds_for_all_runs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TEXT, "--training.seq_len=32", "--training.steps", "16")
    assert {plan.config(run).training.seq_len for run in plan.runs} == {32}
    # what the study sets itself stays
    assert plan.config(plan.runs[0]).training.steps == plan.runs[0].last_step


def test_faults_of_arms_are_reported_once_with_file_and_arm(tmp_path: Path) -> None:
    text = TEXT.replace("saf.rate = 0.5", 'saf.rate = 2.0\nsaf.selector = "varience"').replace("tokens_of", "#")
    with pytest.raises(ConfigError) as error:
        plan_of(tmp_path, text.replace("branch_fraction = 0.25", "branch_step = 9"))
    place = f'{tmp_path / "study.toml"}: arm "mean"'
    found = str(error.value).splitlines()
    assert f"{place}: [saf] rate = 2.0: must be a number, at least 0 and at most 1" in found
    assert any(line.startswith(f"{place}: [saf] selector") and "did you mean variance?" in line for line in found)
    assert any('arm "early"' in line and "branch_step = 9" in line for line in found), found


def test_a_parent_that_was_trained_before(tmp_path: Path) -> None:
    text = TEXT.replace("[[arm]]", f'[parent]\nrun = "{tmp_path}/old-{{seed}}"\n[[arm]]', 1)
    with pytest.raises(ConfigError, match=r"has no complete checkpoint of step 4: .*old-1/checkpoint/step-4"):
        plan_of(tmp_path, text)
    for seed in (1, 2):
        for step in (2, 4):
            folder = tmp_path / f"old-{seed}/checkpoint/step-{step}"
            folder.mkdir(parents=True)
            (folder / ".metadata").write_bytes(b"index")
    plan = plan_of(tmp_path, text)
    assert not [run for run in plan.runs if run.arm is None]
    assert plan.config(plan.of("mean", 2)).checkpoint.initial_load_path == f"{tmp_path}/old-2/checkpoint/step-4"


def test_equal_time_needs_an_equal_start(tmp_path: Path) -> None:
    text = TEXT.replace('seconds_of = "ordinary"', 'seconds_of = "ordinary"\nbranch_step = 2')
    with pytest.raises(ConfigError, match="begins after step 4 and this arm after step 2"):
        plan_of(tmp_path, text)


@pytest.mark.parametrize(
    ("arms", "fault"),
    [
        ('heads_of = "ordinary"\n', 'heads_of = "ordinary": freezes no heads; name an arm that sets a key of [saf]'),
        (
            'heads_of = "frozen"\nsaf.selector = "kl"\n[[arm]]\nname = "frozen"\nsaf.rate = 0.5\n',
            "[saf] selector = 'kl': has no effect beside heads_of = \"frozen\", which gives the heads; take one away",
        ),
        ("saf.step = 3\n", "[saf] step = 3: is before the branch of the arm, after step 4; freeze there or later"),
    ],
)
def test_an_arm_without_an_effect_is_refused_before_training(tmp_path: Path, arms: str, fault: str) -> None:
    head = f'config = "{TINY}"\nbranch_step = 4\n[[arm]]\nname = "ordinary"\n[[arm]]\nname = "late"\n'
    with pytest.raises(ConfigError) as error:
        plan_of(tmp_path, head + arms)
    assert str(error.value).splitlines() == [f'{tmp_path / "study.toml"}: arm "late": {fault}']


def test_a_seed_of_the_command_line_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--seeds = 7: is given twice"):
        StudyPlan(plan_of(tmp_path).study, tmp_path / "out", seeds=[7, 7])


def faults(folder: Path, text: str, *words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the command says of a faulty study, a fault a line."""
    (folder / "study.toml").write_text(text)
    assert main([str(folder / "study.toml"), "--out", str(folder / "out"), *words]) == 2
    return capsys.readouterr().err.splitlines()


def test_faults_of_the_file_and_of_its_runs_come_in_one_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TEXT.replace('heads_of = "mean"', 'heads_of = "meen"').replace("saf.rate = 0.5", "saf.rate = 2.0")
    text = text.replace("branch_fraction = 0.25", "branch_step = 9").replace("[1, 2]", "[1, 1]")
    found = faults(tmp_path, f'colums = ["final"]\n{text}', "--arms", "mean", "early", "prone", capsys=capsys)
    file = tmp_path / "study.toml"
    assert set(found) == {
        f'{file}: colums = ["final"]: unknown key; did you mean columns?',
        f"{file}: seeds = [1, 1]: holds 1 twice",
        f'{file}: arm "prune": heads_of = "meen": is no arm; did you mean "mean"?',
        f"command line: --arms = prone: is no arm of {file}; it has ordinary, early, mean, prune, timed, longer",
        f'{file}: arm "early": branch_step = 9: is beyond the end of the parent, whose training.steps is 8',
        f'{file}: arm "mean": [saf] rate = 2.0: must be a number, at least 0 and at most 1',
    }
    assert len(found) == len(set(found))


def test_faults_of_all_parts_come_with_those_of_the_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = TEXT.replace("[[arm]]", "[set]\ntraining.stepz = 3\n[parent]\noptimizer.lr = -1\n[[arm]]", 1)
    found = faults(tmp_path, text.replace("saf.rate = 0.5", "saf.rate = 2.0"), "--saf.rat", "1", capsys=capsys)
    file = tmp_path / "study.toml"
    assert [line.partition(": unknown")[0].partition(": must")[0] for line in found] == [
        "command line: [saf] rat = 1",
        f"{file}: [set]: [training] stepz = 3",
        f"{file}: [parent]: [optimizer] lr = -1",
        f'{file}: arm "mean": [saf] rate = 2.0',
    ]


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ('["data.sed"]', 'holds "data.sed", which is no key of a run; did you mean data.seed?'),
        ('["seed"]', 'holds "seed", which is no key of a run; '),
        ('["data.path"]', "holds data.path, which cannot be the seed 1: it must be a string"),
    ],
)
def test_a_wrong_seed_key_is_one_line(
    tmp_path: Path, keys: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = faults(tmp_path, f"seed_keys = {keys}\n{TEXT}", capsys=capsys)
    assert line.startswith(f"{tmp_path / 'study.toml'}: seed_keys = {keys}: {fault}")


def test_an_arm_with_weights_is_a_new_run(tmp_path: Path) -> None:
    index = tmp_path / "text-2/checkpoint/step-7/.metadata"
    index.parent.mkdir(parents=True)
    index.touch()
    (index.parents[1] / "step-3").mkdir()
    text = TEXT.replace("branch_step = 4\n", "").replace("branch_fraction = 0.25", "")
    plan = plan_of(tmp_path, text.replace("[[arm]]", f'[parent]\nweights = "{tmp_path}/text-{{seed}}"\n[[arm]]', 1))
    assert {run.first_step for run in plan.runs} == {0}
    assert not any(run.arm is None for run in plan.runs)
    mean = plan.config(plan.of("mean", 2))
    assert mean.checkpoint.initial_load_path == str(index.parent)
    assert mean.checkpoint.initial_load_model_only
    assert (mean.training.steps, mean.freeze_step) == (8, 4)
    # that of the first seed is not there yet
    assert plan.config(plan.of("mean", 1)).checkpoint.initial_load_path == f"{tmp_path}/text-1"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (TEXT.replace("[[arm]]", '[parent]\nweights = "x"\n[[arm]]', 1), "branch_step = 4: has no effect beside"),
        (TEXT.replace("saf.rate = 0.25", 'weights = "x"', 1), "branch_fraction = 0.25: has no effect beside weights"),
        (
            TEXT.replace("[[arm]]", '[parent]\nrun = "y"\nweights = "x"\n[[arm]]', 1),
            'run = "y": cannot be combined with weights',
        ),
        (
            TEXT.replace("[[arm]]", '[parent]\nweights = "x"\noptimizer.lr = 1e-3\n[[arm]]', 1),
            'weights = "x": gives the weights, so no parent is trained',
        ),
    ],
    ids=["study", "arm", "run", "settings"],
)
def test_what_has_no_effect_beside_weights_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_study_text(tmp_path, text)
    assert fault in str(error.value)


def load_study_text(folder: Path, text: str) -> None:
    (folder / "study.toml").write_text(text)
    load_study(folder / "study.toml")


OFF = "checkpoint.enable = false"


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        (f"{TEXT}[set]\n{OFF}\n", [], "{study}: [set]"),
        (f"{TEXT}[parent]\n{OFF}\n", [], "{study}: [parent]"),
        (f"{TEXT}{OFF}\n", [], '{study}: arm "longer"'),
        (TEXT, ["--checkpoint.enable", "false"], "command line"),
        (TEXT.replace(str(TINY), "{base}"), [], "{base}"),
    ],
    ids=["all runs", "parent", "an arm", "command line", "base"],
)
def test_a_study_without_checkpoints_is_refused_once(tmp_path: Path, text: str, words: list[str], place: str) -> None:
    names = {"{study}": str(tmp_path / "study.toml"), "{base}": str(tmp_path / "base.toml")}
    for name, path in names.items():
        text, place = text.replace(name, path), place.replace(name, path)
    (tmp_path / "base.toml").write_text(TINY.read_text().replace("interval = 2", "enable = false"))
    with pytest.raises(ConfigError) as error:
        plan_of(tmp_path, text, *words)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{place}: [checkpoint] enable = false: must be true")


def test_the_command_line_may_turn_checkpoints_on_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"{TEXT}[set]\n{OFF}\n", "--checkpoint.enable", "true")
    assert all(plan.config(run).checkpoint.enable for run in plan.runs)
