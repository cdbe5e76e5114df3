"""Checkpoints that arms are to start from: what does not fit is refused before anything is trained.

Covers study/checkpoints.py, study/folder.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from saf_titan.study.__main__ import main
from tests.data.corpus import write_corpus
from tests.e2e.runs import TINY, Run, train

pytestmark = pytest.mark.distributed

ARMS = """
[[arm]]
name = "ordinary"
[[arm]]
name = "mean"
saf.rate = 0.5
"""
STATIC = "has 2 static heads already, which every arm would have; give a checkpoint from before the freeze"


def study(folder: Path, parent: str, *, arms: str = ARMS, head: str = "", start: str = "branch_step = 4") -> list[str]:
    """Words of a study in a file of its own, whose [parent] is `parent`."""
    folder.mkdir(exist_ok=True)
    text = f'config = "{TINY}"\n{start}\nseeds = [1337]\n{head}\n[launch]\ndevice = "cpu"\n[parent]\n{parent}\n{arms}'
    (folder / "study.toml").write_text(text)
    return [str(folder / "study.toml"), "--out", str(folder / "out")]


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a study says that is refused with and without --dry-run."""
    said = []
    for more in (["--dry-run"], []):
        assert main([*words, *more]) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert "Traceback" not in said[0]
    return said[0]


@pytest.mark.parametrize(
    ("overrides", "differences"),
    [
        (("--model.num_layers", "3", "--model.dim", "64"), ["model.num_layers was 2 and is 3", "model.dim was 32"]),
        (("--model.vocab_size", "512"), ["model.vocab_size was 256 and is 512"]),
        (("--model.position", "learned"), ["model.position was rope and is learned"]),
        (("--training.seq_len", "32"), ["training.seq_len was 64 when the checkpoint was saved, and is 32 now"]),
        (("--optimizer.name", "SGD"), ['optimizer.name was "AdamW" and is "SGD"']),
        (("--data.shuffle", "false"), ["data.shuffle was True when the checkpoint was saved, and is False now"]),
    ],
    ids=["shape", "vocabulary", "positions", "length", "optimizer", "order"],
)
def test_a_parent_of_another_run_is_refused_with_what_differs(
    parent_run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    corpus_overrides: tuple[str, ...],
    overrides: tuple[str, ...],
    differences: list[str],
) -> None:
    words = study(tmp_path, f'run = "{parent_run.folder}"')
    said = refusal([*words, *corpus_overrides, *overrides], capsys)
    # both arms have the same parent: one line
    assert len(said.splitlines()) == 1
    assert said.startswith(f'{tmp_path}/study.toml: [parent]: run = "{parent_run.folder}": ')
    assert all(difference in said for difference in differences), said
    assert not (tmp_path / "out").exists()


def test_a_parent_on_other_tokens_is_refused(
    parent_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = np.random.default_rng(1).integers(100, size=9_000)
    (tmp_path / "other").mkdir()
    write_corpus(tmp_path / "other", train=tokens[:6_000], val=tokens[6_000:], vocab_size=256, eot=255)
    words = study(tmp_path, f'run = "{parent_run.folder}"')
    said = refusal([*words, "--data.path", str(tmp_path / "other")], capsys)
    assert "holds other training tokens, or those of another tokenizer" in said


def test_a_parent_with_static_heads_is_refused(
    parent_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus_overrides: tuple[str, ...]
) -> None:
    words = study(tmp_path, f'run = "{parent_run.folder}/checkpoint/step-6"')
    assert STATIC in refusal([*words, *corpus_overrides], capsys)


def test_a_parent_that_fits_passes(
    parent_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus_overrides: tuple[str, ...]
) -> None:
    words = study(tmp_path, f'run = "{parent_run.folder}"')
    assert main([*words, *corpus_overrides, "--dry-run"]) == 0
    assert "runs       2, of which 0 are done" in capsys.readouterr().out


def test_weights_that_do_not_fit_are_refused(
    parent_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus_overrides: tuple[str, ...]
) -> None:
    longer = ("--training.seq_len", "96")
    words = study(tmp_path / "one", f'weights = "{parent_run.folder}"', start="")
    said = refusal([*words, *corpus_overrides, *longer], capsys)
    assert said.startswith(f'{tmp_path}/one/study.toml: [parent]: weights = "{parent_run.folder}": ')
    assert "are fitted to sequences of 64 tokens" in said
    # without static heads any length is right, and an arm may have weights of its own
    arms = ARMS.replace("saf.rate", f'weights = "{parent_run.folder}"\nsaf.rate')
    words = study(tmp_path / "two", f'weights = "{parent_run.folder}/checkpoint/step-4"', arms=arms, start="")
    said = refusal([*words, *corpus_overrides, *longer], capsys)
    assert said.startswith(f'{tmp_path}/two/study.toml: arm "mean": weights = "{parent_run.folder}": ')


def test_weights_that_are_not_there_yet_are_said_by_a_dry_run_and_stop_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus_overrides: tuple[str, ...]
) -> None:
    words = [*study(tmp_path, f'weights = "{tmp_path}/text-{{seed}}"', start=""), *corpus_overrides]
    assert main([*words, "--dry-run"]) == 0
    missing = f"{tmp_path}/text-1337 holds no complete checkpoint; train that run first"
    assert f"  weights    not ready: {missing}" in capsys.readouterr().out.splitlines()
    assert main(words) == 2
    assert missing in capsys.readouterr().err


def test_learned_positions_are_as_many_as_the_longest_sequence(
    tmp_path: Path, corpus_overrides: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    learned = ("--model.position", "learned", "--saf.enable", "false", "--training.steps", "2")
    run = train(tmp_path / "text", *corpus_overrides, *learned, ranks=1)
    mqar = ("--data.kind", "mqar", "--data.pairs", "3", "--data.vocab_size", "64", "--model.position", "learned")
    words = study(tmp_path / "one", f'weights = "{run.folder}"', arms='[[arm]]\nname = "a"', start="")
    said = refusal([*words, *mqar, "--training.seq_len", "32"], capsys)
    assert "has 64 learned positions, and the longest sequence of this run has 32 tokens" in said
    assert main([*words, *mqar, "--training.seq_len", "32", "--validator.lengths", "[32, 64]", "--dry-run"]) == 0


@pytest.mark.parametrize("place", ["file", "below a file", "a run", "in a run", "another study", "in a study"])
def test_runs_of_two_studies_never_lie_in_each_other(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus_overrides: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "run").mkdir()
    shutil.copy(TINY, tmp_path / "run" / "run.toml")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".study").write_text("controls\n")
    out, message = {
        "file": ("file", "is a file"),
        "below a file": ("file/out", f"lies below {tmp_path}/file, which is a file"),
        "a run": ("run", "is the folder of a run"),
        "in a run": ("run/out", f"lies in {tmp_path}/run, which is the folder of a run"),
        "another study": ("other", "is the folder of the study controls"),
        "in a study": ("other/deep/out", "lies in the folder of the study controls"),
    }[place]
    words = study(tmp_path / "new", "", start="branch_fraction = 0.0")[:1]
    said = refusal([*words, *corpus_overrides, "--out", str(tmp_path / out)], capsys)
    assert said == f"command line: --out = {tmp_path / out}: {message}; give a folder of its own\n"
