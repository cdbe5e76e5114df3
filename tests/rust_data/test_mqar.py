"""MQAR rows: solvable, stable, spread as promised, and bit-identical to the published procedure."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rust_data import class_tokens
from rust_data.gen import main, parse_args, run
from rust_data.mqar import IGNORE, Mqar, borders, generate, generate_zoology, preview


def digest(*arrays: np.ndarray) -> str:
    hasher = hashlib.sha256()
    for array in arrays:
        hasher.update(array.astype("<i4").tobytes())
    return hasher.hexdigest()[:16]


@pytest.mark.parametrize(
    ("config", "golden"),
    [
        ({"vocab_size": 256, "length": 64, "pairs": 8}, "78f104187bcef580"),
        ({"vocab_size": 8192, "length": 512, "pairs": 64, "power_a": 1.0, "seed": 7}, "02a8773a7af6b183"),
        ({"vocab_size": 64, "length": 48, "pairs": 16, "seed": 2**64 - 1}, "c9246aa0c543f976"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_golden_rows(config: dict[str, Any], golden: str, threads: int) -> None:
    assert digest(*generate(1000, threads=threads, **config)) == golden


def test_a_row_depends_on_seed_and_number_alone() -> None:
    config: dict[str, Any] = {"vocab_size": 256, "length": 64, "pairs": 8}
    inputs, labels = generate(600, **config)
    for row in (0, 1, 255, 256, 599):
        alone = generate(1, first_row=row, **config)
        np.testing.assert_array_equal(alone.inputs[0], inputs[row])
        np.testing.assert_array_equal(alone.labels[0], labels[row])
    assert len({row.tobytes() for row in inputs}) == 600
    assert not np.array_equal(generate(600, seed=1, **config).inputs, inputs)


@pytest.mark.parametrize("length", [64, 256])
def test_rows_are_well_formed_and_solvable(length: int) -> None:
    vocab_size, pairs = 256, 8
    inputs, labels = generate(2000, vocab_size=vocab_size, length=length, pairs=pairs)
    border = borders(vocab_size)
    assert border == (64, 160)
    for row, label in zip(inputs, labels, strict=True):
        keys, values = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert keys.min() >= border.first_key
        assert keys.max() < border.first_value <= values.min()
        asked = np.flatnonzero(label != IGNORE)
        assert asked.min() >= 2 * pairs
        assert sorted(row[asked]) == sorted(keys)
        table = dict(zip(keys.tolist(), values.tolist(), strict=True))
        assert [table[key] for key in row[asked].tolist()] == label[asked].tolist()
        fillers = np.delete(row[2 * pairs :], asked - 2 * pairs)
        assert fillers.max() < border.first_key
    assert inputs.max() < vocab_size


def test_every_place_is_reached_and_the_first_most() -> None:
    length, pairs = 64, 4
    labels = generate(20_000, vocab_size=256, length=length, pairs=pairs, power_a=0.01).labels
    counts = np.count_nonzero(labels[:, 2 * pairs :] != IGNORE, axis=0)
    assert counts.min() > 0
    assert counts[0] > 2 * counts[4] > 4 * counts[40] > 0
    uniform = generate(20_000, vocab_size=256, length=length, pairs=pairs, power_a=1.0).labels
    counts = np.count_nonzero(uniform[:, 2 * pairs :] != IGNORE, axis=0)
    expected = 20_000 * pairs / (length - 2 * pairs)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_which_query_comes_first_is_open() -> None:
    inputs, labels = generate(4000, vocab_size=256, length=32, pairs=2)
    first = np.argmax(labels != IGNORE, axis=1)
    is_first_key = inputs[np.arange(4000), first] == inputs[:, 0]
    assert 1500 < is_first_key.sum() < 3000


def test_tight_rows() -> None:
    # as many queries as places, as many pairs as keys
    inputs, labels = generate(100, vocab_size=16, length=18, pairs=6)
    assert (labels[:, 12:] != IGNORE).all()
    assert (np.sort(inputs[:, 0:12:2], axis=1) == np.arange(4, 10)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 3}, "vocab_size=3: must be in 4"),
        ({"vocab_size": 2**24 + 1}, "vocab_size=16777217: must be in 4 .. 16777216"),
        ({"pairs": 0}, "pairs=0"),
        ({"length": 23}, "length=23"),
        ({"vocab_size": 16}, "has only 6 keys"),
        ({"power_a": 0.0}, "power_a=0"),
        ({"power_a": float("nan")}, "power_a=NaN"),
        ({"seed": -1}, "seed=-1: must be in 0"),
        ({"first_row": 2**64 - 1, "rows": 2}, "rows=2: must be in 0 .. 1"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(**{"rows": 1, "vocab_size": 256, "length": 64, "pairs": 8, **change})


def test_rows_into_given_arrays() -> None:
    arrays = generate(50, vocab_size=256, length=64, seed=1)
    assert generate(50, vocab_size=256, length=64, seed=2, out=arrays) is arrays
    assert digest(*arrays) == digest(*generate(50, vocab_size=256, length=64, seed=2))


def test_arrays_that_cannot_be_filled() -> None:
    inputs, labels = generate(4, vocab_size=256, length=64)
    read_only = labels.copy()
    read_only.flags.writeable = False
    for bad, message in [
        (Mqar(inputs[:3], labels), r"inputs must be an array int32 \(4, 64\), got int32 \(3, 64\)"),
        (Mqar(inputs, labels.astype(np.int64)), "labels must be an array int32 .* got int64"),
        (Mqar(np.asfortranarray(inputs), labels), "inputs must be C-contiguous"),
        (Mqar(inputs, read_only), "labels must be C-contiguous and writeable"),
        (Mqar(inputs, inputs), "must not share memory"),
        ((inputs,), "needs the 2 arrays inputs, labels, got 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            generate(4, vocab_size=256, length=64, out=bad)  # type: ignore[arg-type]


def published(
    examples: int, vocab_size: int, length: int, pairs: int, power_a: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The procedure of zoology's multiquery_ar on NumPy's own legacy stream, without fillers."""
    random = np.random.RandomState(seed)
    half = vocab_size // 2

    def draw(choices: np.ndarray, weights: np.ndarray | None = None) -> Iterator[np.ndarray]:
        for _ in range(examples):
            yield random.choice(choices, size=pairs, replace=False, p=weights)

    keys = np.stack(list(draw(np.arange(1, half))))
    values = np.stack(list(draw(np.arange(half, vocab_size))))
    slots = (length - 2 * pairs) // 2
    weights = power_a * np.arange(1, slots + 1) ** (power_a - 1)
    gaps = np.stack(list(draw(np.arange(slots), weights / weights.sum())))
    inputs = np.zeros((examples, length), dtype=np.int64)
    labels = np.full((examples, length), IGNORE, dtype=np.int64)
    inputs[:, 0 : 2 * pairs : 2], inputs[:, 1 : 2 * pairs : 2] = keys, values
    np.put_along_axis(inputs, 2 * pairs + 2 * gaps, keys, axis=1)
    np.put_along_axis(labels, 2 * pairs + 2 * gaps, values, axis=1)
    return inputs, labels


@pytest.mark.parametrize(
    ("vocab_size", "length", "pairs", "power_a", "seed"),
    [(8192, 64, 4, 0.01, 0), (8192, 256, 64, 0.01, 123), (512, 128, 8, 1.0, 2**31), (101, 64, 16, 0.1, 2**32 - 1)],
)
def test_zoology_is_bit_identical(vocab_size: int, length: int, pairs: int, power_a: float, seed: int) -> None:
    config: dict[str, Any] = {
        "vocab_size": vocab_size, "length": length, "pairs": pairs, "power_a": power_a, "seed": seed,
    }  # fmt: skip
    ours = generate_zoology(150, random_fillers=False, **config)
    for mine, theirs in zip(ours, published(150, **config), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_zoology_fillers_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    bare = generate_zoology(20, random_fillers=False)
    torch.manual_seed(5)
    filled = generate_zoology(20)
    torch.manual_seed(5)
    fillers = torch.randint(8192, (20, 64)).numpy()
    np.testing.assert_array_equal(filled.inputs, np.where(bare.inputs == 0, fillers, bare.inputs))
    np.testing.assert_array_equal(filled.labels, bare.labels)


def test_zoology_wrong_arguments() -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"length": 63}, "length=63"),
        ({"pairs": 17}, "pairs=17"),
        ({"seed": 2**32}, "seed="),
        *(({"power_a": a}, f"power_a={a}: must be in") for a in (0, -3, float("nan"), 1e9)),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            generate_zoology(1, random_fillers=False, **change)
    labels = generate_zoology(5, random_fillers=False, power_a=1).labels
    assert ((labels != IGNORE).sum(1) == 4).all()


def test_preview_names_every_query() -> None:
    inputs, labels = generate(1, vocab_size=256, length=24, pairs=3)
    text = preview(inputs[0], labels[0], 3)
    assert text.count("label") == 3
    assert all(f"k{i}" in text for i in (1, 2, 3))
    assert "?" not in text


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["mqar", "--vocab-size", "256", "--length", "64", "--seed", "3"]
    splits = ["--split", "train=250", "--split", "test=30"]
    assert main([*settings, *splits, "--out", str(tmp_path / "out"), "--shard-rows", "100"]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format"] == "rust_data.mqar"
    assert [shard["rows"] for shard in manifest["splits"]["train"]["shards"]] == [100, 100, 50]
    parts = [np.load(tmp_path / "out" / f"train_{i:06}.npz") for i in range(3)]
    parts.append(np.load(tmp_path / "out" / "test_000000.npz"))
    expected = generate(280, vocab_size=256, length=64, seed=3)
    np.testing.assert_array_equal(np.concatenate([part["inputs"] for part in parts]), expected.inputs)
    np.testing.assert_array_equal(np.concatenate([part["labels"] for part in parts]), expected.labels)
    assert main([*settings, *splits, "--out", str(tmp_path / "out")]) == 1
    assert "holds a corpus already" in capsys.readouterr().err
    assert main([*settings, "--split", "train=5", "--out", str(tmp_path / "one.npz")]) == 0
    assert np.load(tmp_path / "one.npz")["inputs"].shape == (5, 64)
    assert main([*settings, "--split", "train=6", "--out", str(tmp_path / "one.npz")]) == 1
    assert "one.npz is there already" in capsys.readouterr().err
    assert np.load(tmp_path / "one.npz")["inputs"].shape == (5, 64)
    assert main([*settings, "--preview"]) == 0
    assert main([*settings, "--preview", "--no-fillers"]) == 1
    assert "--no-fillers works only with --zoology" in capsys.readouterr().err
    assert main([*settings, "--split", "train=5", "--out", str(tmp_path / "zero"), "--shard-rows", "0"]) == 1
    assert "shard_rows=0" in capsys.readouterr().err
    assert main(settings) == 1
    assert main([*settings, "--pairs", "100", "--split", "a=1", "--out", str(tmp_path / "bad")]) == 1
    assert "pairs=100" in capsys.readouterr().err


def test_command_line_zoology(tmp_path: Path) -> None:
    arguments = ["mqar", "--zoology", "--no-fillers", "--length", "64", "--pairs", "4", "--seed", "5"]
    arguments += [
        "--split",
        "train=20",
        "--split",
        "test=10",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(arguments) == 0
    for split, rows, seed in (("train", 20, 5), ("test", 10, 5 + 2**31)):
        found = np.load(tmp_path / "out" / f"{split}_000000.npz")
        expected = generate_zoology(rows, random_fillers=False, seed=seed)
        np.testing.assert_array_equal(found["inputs"], expected.inputs)


def test_a_failed_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["mqar", "--vocab-size", "256", "--length", "64", "--split", "a=25", "--shard-rows", "10"]
    out = tmp_path / "new" / "out"
    write, calls = np.savez, []

    def full_at_the_third(*args: Any, **arrays: Any) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        write(*args, **arrays)

    monkeypatch.setattr(np, "savez", full_at_the_third)
    with pytest.raises(OSError, match=r"No space left on device: '.*a_000002\.npz'"):
        run(parse_args([*arguments, "--out", str(out)]))
    assert not (tmp_path / "new").exists()
    assert main([*arguments, "--out", str(out)]) == 0
    assert len(list(out.glob("*.npz"))) == 3


def test_two_runs_do_not_write_to_one_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mqar", "--vocab-size", "256", "--length", "64", "--split", "a=5", "--out"]
    (tmp_path / "out").mkdir()
    (tmp_path / "one.npz.tmp").write_bytes(b"")
    for place, locked in (("out", "out"), ("one.npz", "one.npz.tmp")):
        other = os.open(tmp_path / locked, os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main([*arguments, str(tmp_path / place)]) == 1
        assert "another run is writing here" in capsys.readouterr().err
        os.close(other)
        assert main([*arguments, str(tmp_path / place)]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a_000007.npz").write_bytes(b"mine")
    assert main([*arguments, str(tmp_path / "mine")]) == 1
    assert "a_000007.npz is there already" in capsys.readouterr().err


def test_options_without_effect_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--preview", "--split", "a=5", "--out", "x"], "writes nothing: leave out --split, --out"),
        (["--zoology", "--no-fillers", "--split", "a=5", "--out", "x", "--shard-rows", "3"], "each split is one shard"),
        (["--split", "a=5", "--out", "x.npz", "--shard-rows", "3"], "a single .npz file has no shards"),
        (["--preview", "--threads", "2"], "writes nothing: leave out --threads"),
        (["--zoology", "--no-fillers", "--split", "a=5", "--out", "x", "--threads", "2"], "drawn on one thread"),
    ):
        assert main(["mqar", *arguments]) == 1
        assert message in capsys.readouterr().err
    words = "class-tokens --counts 2,3 --deterministic --seed 4 --preview"
    assert main(words.split()) == 1
    assert "with --deterministic nothing is drawn" in capsys.readouterr().err


def test_a_seed_changes_no_deterministic_rows() -> None:
    first, second = (class_tokens.generate(6, counts=(2, 3), deterministic=True, seed=seed) for seed in (0, 4))
    assert np.array_equal(first.tokens, second.tokens)
