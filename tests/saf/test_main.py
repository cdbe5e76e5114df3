"""The offline commands, on files.

Covers saf/show/picture.py, fields/command_line.py.
"""

from pathlib import Path

import pytest
import torch

from saf_titan.saf.__main__ import main
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit.content import CompactContent, Content, DenseContent
from saf_titan.saf.fit.registry import CONTENTS
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings
from saf_titan.saf.select.registry import SELECTORS
from saf_titan.saf.select.selector import Selector
from tests.saf.plans import plan_of
from tests.saf.synthetic import calibration

DATA = calibration([[0.1, 0.4, 0.8], [0.2, 0.3, 0.9]], unfit=((0, 0),))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    DATA.save(tmp_path / "stats")
    plan_of(DATA, step=0, rate=0.5).save(tmp_path / "plan")
    return tmp_path


def test_select_makes_the_plan_of_the_trainer(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", str(files / "stats"), "--rate", "0.5", "--out", str(files / "again")]) == 0
    assert StaticPlan.load(files / "again").digest == StaticPlan.load(files / "plan").digest
    assert main(["diff", str(files / "plan"), str(files / "again")]) == 0
    assert "the plans are equal" in capsys.readouterr().out


def test_select_passes_its_options_on(files: Path) -> None:
    options = ["--rate", "0.34", "--selector", "list", "--heads", "L0H2,L1H2", "--content", "uniform", "--step", "9"]
    assert main(["select", str(files / "stats"), *options, "--out", str(files / "list")]) == 0
    plan = StaticPlan.load(files / "list")
    assert [(head.layer, head.head) for head in plan.heads] == [(0, 2), (1, 2)]
    assert (plan.step, plan.content) == (9, "uniform")
    assert main(["diff", str(files / "plan"), str(files / "list")]) == 1


def test_options_without_effect_are_said(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["select", str(files / "stats"), "--rate", "0.34", "--out", str(files / "out")]
    options = ["--seed", "3", "--max-fit-kl", "9", "--fit-method", "ipf", "--max-dense-gib", "4"]
    assert main([*words, *options, "--content", "prune", "--heads", "L0H2,L1H2"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "note: --seed has no effect on selector variance and content prune, which draw nothing",
        "note: --heads has no effect on selector variance: only selector list takes heads by name",
        "note: --max-fit-kl, --fit-method have no effect on content prune, which fits no pattern",
        "note: --max-dense-gib has no effect on content prune, which has no matrices",
    ]
    assert main([*words, "--seed", "3", "--selector", "random_layer_matched", "--max-fit-kl", "9"]) == 0
    assert main([*words, "--seed", "3", "--content", "random", "--fit-method", "ipf"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("entry", [*SELECTORS.values(), *CONTENTS.values()], ids=lambda entry: entry.name)
def test_what_draws_says_so(entry: Selector | Content) -> None:
    """An entry depends on the seed if and only if it says so."""

    def made(seed: int) -> torch.Tensor:
        settings = PlanSettings(seed=seed, heads=("L0H1",))
        if isinstance(entry, Selector):
            # selectors without a ranking of their own order a score that is measured without this seed
            return torch.zeros(1) if entry.rank is None else entry.rank(DATA, settings).scores_LH
        if isinstance(entry, DenseContent):
            generator = torch.Generator().manual_seed(seed)
            scores_BRJ = torch.linspace(-1, 1, 24).view(2, 3, 4)
            return entry.rows(scores_BRJ, scores_BRJ.softmax(2), torch.zeros(3, 4, dtype=torch.bool), generator)
        parameters = entry.parameters if isinstance(entry, CompactContent) else None
        return torch.zeros(1) if parameters is None else parameters(DATA, [(0, 1)], seed)[0]

    assert torch.equal(made(0), made(1)) != entry.draws


def test_select_fits_by_the_method_it_is_given(files: Path) -> None:
    def pattern(method: str) -> torch.Tensor:
        words = ["--rate", "0.5", "--fit-method", method, "--max-fit-kl", "9", "--out", str(files / method)]
        assert main(["select", str(files / "stats"), *words]) == 0
        return StaticPlan.load(files / method).heads[0].pattern.vectors[1]

    assert not torch.equal(pattern("adam400"), pattern("lbfgs"))


def test_show_names_the_files_of_a_folder(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_of(DATA, step=0, rate=0.5).save(files / "plan.safetensors")
    for missing in (files, files / "plan.safetensor"):
        assert main(["show", str(missing)]) == 2
        assert f"{files} has plan.safetensors" in capsys.readouterr().err


def test_show_explain_and_fit_print_every_head(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(files / "plan"), "--stats", str(files / "stats")]) == 0
    assert "L0  x  #  ." in capsys.readouterr().out
    assert main(["explain", str(files / "stats"), "--plan", str(files / "plan"), "--selector", "kl"]) == 0
    assert "skipped: fit KL" in capsys.readouterr().out
    assert main(["fit", str(files / "stats")]) == 0
    printed = capsys.readouterr().out
    assert all(f"L{layer}H{head}" in printed for layer in range(2) for head in range(3))
    assert main(["fit", str(files / "stats"), "--heads", "L1H2", "--method", "ipf"]) == 0
    assert "1 heads in" in capsys.readouterr().out


def test_show_writes_a_picture(files: Path) -> None:
    arguments = ["show", str(files / "plan"), "--png", str(files / "heads.png")]
    assert main([*arguments, "--stats", str(files / "stats")]) == 0
    assert (files / "heads.png").read_bytes().startswith(b"\x89PNG")
    assert main(arguments) == 2


def test_a_command_that_is_interrupted_is_one_line(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Calibration, "load", interrupted)
    assert main(["explain", str(files / "stats")]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_files_of_two_models_are_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = ({"family": "gpt", "num_layers": 2, "dim": dim} for dim in (32, 64))
    DATA.of_model(one).save(files / "stats")
    plan_of(DATA.of_model(other), step=0, rate=0.34).save(files / "plan")
    plan_of(DATA.of_model(one), step=0, rate=0.34).save(files / "own")
    stats = str(files / "stats")
    looking = [["show", "PLAN", "--stats", stats], ["explain", stats, "--plan", "PLAN"]]
    select = ["select", stats, "--base", "PLAN", "--rate", "0.5", "--out", str(files / "out")]
    for words in looking:
        assert main([word.replace("PLAN", str(files / "own")) for word in words]) == 0
        assert not capsys.readouterr().err
    for words in (*looking, select):
        assert main([word.replace("PLAN", str(files / "plan")) for word in words]) == 2
        message = f"{files / 'plan'} is of another model than {stats}: dim is 64 there and 32 here"
        assert message in capsys.readouterr().err
    assert not (files / "out").exists()


def test_mistakes_are_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["show", str(files / "stats")],
        ["show", str(files / "missing")],
        ["explain", str(files / "stats"), "--selector", "taste"],
        ["select", str(files / "stats"), "--rate", "1", "--out", str(files / "never")],
        ["fit", str(files / "stats"), "--heads", "0.3"],
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
    assert not (files / "never").exists()
