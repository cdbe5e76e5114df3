"""Whatever a user types or points to, a subcommand answers with its result or with one line, never with a trace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

from saf_titan.saf.__main__ import main
from saf_titan.saf.install.checkpoint import write_checkpoint
from saf_titan.saf.plan.plan import StaticPlan
from tests.saf.install.test_checkpoint import checkpoint
from tests.saf.install.test_rows import PLAN
from tests.saf.plans import plan_of
from tests.saf.synthetic import calibration

STATS = calibration([[0.1, 0.4, 0.8], [0.2, 0.3, 0.9]])

# {stats}, {plan}, {before}, {after}, {export} are good files; {out} is free
GOOD = {
    "calibrate": ["calibrate", "{after}", "--config", "{config}", "--out", "{out}"],
    "show": ["show", "{plan}", "--stats", "{stats}"],
    "diff": ["diff", "{plan}", "{plan}"],
    "explain": ["explain", "{stats}", "--top", "2", "--selector", "kl", "--plan", "{plan}"],
    "select": ["select", "{stats}", "--rate", "0.5", "--heads", "", "--seed", "1", "--step", "3", "--out", "{out}"],
    "fit": ["fit", "{stats}", "--heads", "L0H1,L1H0", "--method", "ipf"],
    "apply": ["apply", "{before}", "{rows}", "--num-heads", "4", "--out", "{out}"],
    "export": ["export", "{after}", "--num-heads", "4", "--out", "{out}"],
    "restore": ["restore", "{export}", "--out", "{out}"],
}
WORDS = [
    "",
    "-1",
    "0",
    "1e999",
    "nan",
    "x",
    "L9H9",
    "L0H1,L0H1",
    "0.5",
    "99999999999999999999999",
    "\0",
    "é",
    "--",
    "[]",
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("good")
    names = ("stats", "plan", "rows", "before", "after", "export", "config")
    files = {name: folder / name for name in names}
    STATS.save(files["stats"])
    plan_of(STATS, step=0, rate=0.5).save(files["plan"])
    PLAN.save(files["rows"])
    write_checkpoint(checkpoint(), files["before"])
    assert (
        main(["apply", str(files["before"]), str(files["rows"]), "--num-heads", "4", "--out", str(files["after"])]) == 0
    )
    assert main(["export", str(files["after"]), "--num-heads", "4", "--out", str(files["export"])]) == 0
    files["config"].write_text("")
    return files


@pytest.fixture(scope="module")
def bad_files(good: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Not there, a folder, empty, text, a cut and a flipped file of ours, foreign safetensors, broken checkpoints."""
    folder = tmp_path_factory.mktemp("bad")
    contents = {"empty": b"", "text": b"alpha = 1\n", "zeros": bytes(4096)}
    for name in ("stats", "plan", "export"):
        data = bytearray(good[name].read_bytes())
        contents[f"cut-{name}"] = bytes(data[: len(data) // 2])
        data[len(data) // 2] ^= 0xFF
        contents[f"flipped-{name}"] = bytes(data)
    contents["foreign"] = safetensors.torch.save({"w": torch.zeros(2)})
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    broken = []
    for name, content in (("hollow", b""), ("scrambled", b"\x80\x05garbage")):
        (folder / name).mkdir()
        (folder / name / ".metadata").write_bytes(content)
        broken.append(folder / name)
    # weights that are not all there
    metadata = folder / "headless"
    metadata.mkdir()
    (metadata / ".metadata").write_bytes((good["before"] / ".metadata").read_bytes())
    return [folder / "missing", folder, metadata, *broken, *(folder / name for name in contents)]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """The status of a command, after checking that it answered properly."""
    status = main(words)
    error = capsys.readouterr().err
    if status == 2:
        lines = [line for line in error.splitlines() if not line.startswith(("calibration:", "note: "))]
        assert lines[0].startswith("error: "), words
        assert "Traceback" not in error
        assert len(lines) == 1 or "config" in lines[0], (words, error)
    return status


@pytest.mark.parametrize("command", GOOD)
def test_a_bad_file_is_one_line(
    command: str,
    good: dict[str, Path],
    bad_files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    free = tmp_path / "out"
    for place, word in enumerate(GOOD[command]):
        if not word.startswith("{") or word == "{out}":
            continue
        for bad in bad_files:
            words = [w.format(**good, out=free) for w in GOOD[command]]
            words[place] = str(bad)
            assert run(words, capsys) == 2, words
            assert not free.exists()


@pytest.mark.parametrize("command", GOOD)
def test_an_output_that_cannot_be_written_is_one_line(
    command: str, good: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "{out}" in GOOD[command]:
        for bad in (tmp_path / "no" / "folder" / "x", tmp_path):
            words = [w.format(**good, out=bad) for w in GOOD[command]]
            # a checkpoint is a folder, and its parents are made
            if command != "apply" or bad.exists():
                assert run(words, capsys) == 2, words


@pytest.mark.parametrize("command", GOOD)
def test_words_at_random(
    command: str,
    good: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a word may become the name of an output
    monkeypatch.chdir(tmp_path)
    rng = random.Random(command)
    for trial in range(60):
        words = [w.format(**good, out=tmp_path / f"out{trial}") for w in GOOD[command]]
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(1, len(words))
            match rng.randrange(3):
                case 0:
                    words[place] = rng.choice(WORDS)
                case 1:
                    del words[place]
                case 2:
                    words.insert(place, rng.choice(WORDS))
            if len(words) < 2:
                break
        run(words, capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "{stats}", "--heads", "L9H9"], "L9H9, which are not live heads"),
        (["fit", "{stats}", "--heads", "H9"], "'H9' is not a head"),
        (["fit", "{stats}", "--method", "guess"], 'one of "lbfgs", "ipf", "adam400"'),
        (
            ["apply", "{before}", "{rows}", "--num-heads", "0", "--out", "{out}"],
            "'0' must be a whole number, at least 1",
        ),
        (["explain", "{stats}", "--top", "-1"], "at least 0"),
        (["explain", "{stats}", "--top", "two"], "'two' must be a whole number"),
        (["select", "{stats}", "--rate", "1.5", "--out", "{out}"], "at most 1"),
        (["select", "{stats}", "--rate", "0.01", "--out", "{out}"], "--rate 0.01 means none of the 6 heads"),
        (
            ["select", "{stats}", "--rate", "0.5", "--selector", "list", "--heads", "L0H1,L0H1,L1H0", "--out", "{out}"],
            "names L0H1 more than once",
        ),
        (
            ["select", "{stats}", "--rate", "0.5", "--selector", "redundancy", "--out", "{out}"],
            "with saf_titan.saf calibrate CHECKPOINT --selector",
        ),
        (["calibrate", "{folder}", "--out", "{out}"], "is not a complete checkpoint"),
        (["calibrate", "{after}", "--selector", "kl,taste", "--out", "{out}"], "'taste' must be one of"),
        (["show", "{folder}"], "is a folder: give the file of a static_plan"),
        (["show", "{folder}/none"], "none does not exist: a static_plan is needed"),
        (["restore", "{config}", "--out", "{out}"], "is not a readable safetensors file"),
        (["restore", "{stats}", "--out", "{out}"], "holds a calibration, but a compact_model is needed"),
        ([], "command"),
        (["freeze"], "invalid choice"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else "",
)
def test_messages_say_what_to_do(
    words: list[str], message: str, good: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(**good, folder=tmp_path, out=tmp_path / "out") for word in words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_good_words_work(good: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, words in GOOD.items():
        if command != "calibrate":
            assert main([word.format(**good, out=tmp_path / command) for word in words]) == 0
    assert StaticPlan.load(tmp_path / "select").step == 3
