"""Advice on a trained checkpoint: what is measured is what a freeze of the trainer does, and nothing is changed.

Covers study/advise/measure.py, study/advise/steps.py, study/advise/estimate.py and study/advise/command.py.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from saf_titan.config import load_config
from saf_titan.study.__main__ import main
from saf_titan.study.advise.measure import CEILING, find_checkpoint, measure
from tests.e2e.runs import ROOT, Run, train

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    """One rank, frozen after step 4 of 8."""
    return train(tmp_path_factory.mktemp("advise") / "run", *corpus_overrides, ranks=1)


def digests(folder: Path) -> dict[str, str]:
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_what_is_measured(frozen: Run) -> None:
    # the newest checkpoint has static heads; the one of the freeze does not
    run, checkpoint = find_checkpoint(frozen.folder)
    assert checkpoint.name == "step-4"
    stages: list[tuple[str, int, int]] = []
    found = measure(
        run,
        checkpoint,
        rates=(0.25, 0.5),
        selectors=("variance", "output_error"),
        rounds=2,
        progress=lambda *stage: stages.append(stage),
    )
    assert (found.step, found.steps_left) == (4, 4)
    assert list(found.seconds) == [0.0, 0.25, 0.5, CEILING]
    assert all(0 < times.low <= times.median <= times.high for times in found.seconds.values())
    assert found.speedups[0.0].median == 1
    assert 0 < found.attention_share < 1
    assert set(found.rises) == {"variance", "output_error"}
    total = run.shape.total_heads
    assert all(rise.heads == round(rate * total) for rises in found.rises.values() for rate, rise in rises.items())
    assert any(rise.nats != 0 for rises in found.rises.values() for rise in rises.values())
    assert abs(found.loss - frozen.kind("validation")[0]["loss"]) < 1
    assert stages[-1] == ("loss right after freezing", 2, 2)


def test_the_command_answers_and_changes_nothing(frozen: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = digests(frozen.folder)
    assert main(["advise", str(frozen.folder), "--rates", "0.25", "--selectors", "kl", "--rounds", "2"]) == 0
    assert digests(frozen.folder) == before
    text = capsys.readouterr().out
    assert "step 4, 4 updates left" in text
    assert re.search(r"^(Yes|No|Not)\b", text.splitlines()[-1])


def test_a_configuration_without_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(ROOT / "configs" / "1b_8k.toml"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    shape = load_config(ROOT / "configs" / "1b_8k.toml").shape
    # scores and values of 32 layers of 16 heads of 96 at 8,192 tokens
    product = 6 * 8192 * shape.head_dim * shape.num_heads * shape.num_layers
    (percent, total) = re.findall(r"is (\d+)% of the ([\d,.]+) million", text)[0]
    assert int(percent) == round(100 * 2 * product / (float(total.replace(",", "")) * 1e6))
    assert "Operations are not seconds" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere is neither a checkpoint nor a run's folder: nowhere/config.toml is missing"),
        ([".", "--rates", "0.25,1.5"], "'1.5' must be a number, above 0 and below 1"),
        ([".", "--selectors", "varianze"], "variance"),
        ([".", "--rounds", "1"], "'1' must be a whole number, at least 2"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_checkpoint_with_static_heads_and_a_selector_of_runs(frozen: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(frozen.folder / "checkpoint" / "step-8")]) == 2
    assert "heads are static already in every checkpoint; give one from before the freeze" in capsys.readouterr().err
    assert main(["advise", str(frozen.folder), "--selectors", "qk_gradient"]) == 2
    assert "the selector qk_gradient averages gradients over the steps of training" in capsys.readouterr().err
