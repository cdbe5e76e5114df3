"""Class-token rows: stable, of the stated distribution, and with the right marks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rust_data.class_tokens import generate, preview, vocab_size
from rust_data.gen import main
from tests.rust_data.test_mqar import digest


@pytest.mark.parametrize(
    ("config", "golden"),
    [
        ({"length": 17, "gamma": 0.25}, "f32ac52f65a75545"),
        ({"counts": (2, 14), "distinct": 3, "shared_query": False, "seed": 7}, "31f239f7a679d1d7"),
        ({"counts": (4, 12), "deterministic": True, "classes": 3}, "0212cc2458ba321f"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_golden_rows(config: dict[str, Any], golden: str, threads: int) -> None:
    rows = generate(1000, threads=threads, **config)
    assert digest(rows.tokens, rows.labels) == golden


def test_a_row_depends_on_seed_and_number_alone() -> None:
    config: dict[str, Any] = {"counts": (3, 9), "distinct": 5}
    all_rows = generate(400, **config)
    for row in (0, 255, 256, 399):
        alone = generate(1, first_row=row, **config)
        np.testing.assert_array_equal(alone.tokens[0], all_rows.tokens[row])
        assert alone.labels[0] == all_rows.labels[row]
    assert not np.array_equal(generate(400, seed=1, **config).tokens, all_rows.tokens)


@pytest.mark.parametrize("shared_query", [True, False])
def test_counts(shared_query: bool) -> None:
    classes, distinct, common = 5, 3, 7
    rows = generate(2000, classes=classes, distinct=distinct, common=common, counts=(4, 6), shared_query=shared_query)
    assert rows.tokens.shape == rows.distinct.shape == (2000, 11)
    assert (rows.distinct.sum(axis=1) == 4).all()
    assert not rows.distinct[:, -1].any()
    owner = np.repeat(rows.labels, 4)
    assert (rows.tokens[rows.distinct] // distinct == owner).all()
    others = rows.tokens[:, :-1][~rows.distinct[:, :-1]]
    assert others.min() >= classes * distinct
    assert others.max() < classes * distinct + common
    first_query = classes * distinct + common
    expected = np.full(2000, first_query) if shared_query else first_query + rows.labels
    np.testing.assert_array_equal(rows.tokens[:, -1], expected)
    assert rows.tokens.max() < vocab_size(classes=classes, distinct=distinct, common=common, shared_query=shared_query)
    # every place can hold a distinct token: 2000 * 4 / 10 expected each
    assert abs(rows.distinct[:, :-1].sum(axis=0) - 800).max() < 110
    assert abs(np.bincount(rows.labels) - 400).max() < 90


def test_iid_shares() -> None:
    rows = generate(3000, classes=4, distinct=2, common=3, length=51, gamma=0.2)
    assert abs(rows.distinct[:, :-1].mean() - 0.2) < 0.005
    per_row = rows.distinct.sum(axis=1)
    assert per_row.std() > 2.0  # binomial, not a fixed count
    shares = np.bincount(rows.tokens[:, :-1].ravel(), minlength=11)[8:11] / 150_000
    assert abs(shares - 0.8 / 3).max() < 0.006


def test_deterministic_rows_have_equal_frequencies() -> None:
    rows = generate(8, classes=4, distinct=2, common=3, counts=(4, 6), deterministic=True)
    np.testing.assert_array_equal(rows.labels, [0, 1, 2, 3, 0, 1, 2, 3])
    for tokens, label in zip(rows.tokens, rows.labels, strict=True):
        kinds, counts = np.unique(tokens[:-1], return_counts=True)
        np.testing.assert_array_equal(kinds, [2 * label, 2 * label + 1, 8, 9, 10])
        np.testing.assert_array_equal(counts, [2] * 5)
    assert (
        rows.tokens.tobytes()
        == generate(8, classes=4, distinct=2, common=3, counts=(4, 6), deterministic=True, seed=99).tokens.tobytes()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either length and gamma, or counts"),
        ({"length": 9}, "either length and gamma"),
        ({"length": 9, "gamma": 0.5, "counts": (1, 2)}, "either length and gamma"),
        ({"length": 9, "gamma": 1.5}, "gamma=1.5"),
        ({"length": 1, "gamma": 0.5}, "length=1"),
        ({"length": 9, "gamma": 0.5, "deterministic": True}, "deterministic=True needs counts"),
        ({"counts": (-1, 3)}, "counts="),
        ({"counts": (1, 1, 5)}, r"counts=\(1, 1, 5\): must be \(m, n\)"),
        ({"counts": (1, 3), "classes": 0}, "classes=0"),
        ({"counts": (1, 3), "seed": -1}, "seed=-1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(1, **arguments)


def test_rows_into_given_arrays() -> None:
    arrays = generate(30, counts=(2, 14), distinct=3)
    assert generate(30, counts=(2, 14), distinct=3, seed=7, out=arrays) is arrays
    for found, expected in zip(arrays, generate(30, counts=(2, 14), distinct=3, seed=7), strict=True):
        assert np.array_equal(found, expected)
    with pytest.raises(ValueError, match="distinct must be an array bool"):
        generate(30, counts=(2, 14), distinct=3, out=arrays._replace(distinct=arrays.tokens))


def test_preview_and_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = generate(1, counts=(2, 3), distinct=2)
    text = preview(type(rows)(*(array[0] for array in rows)), distinct=2)
    assert text.count(f"d{rows.labels[0]}.") == 2
    assert main(["class-tokens", "--counts", "2,3", "--split", "a=6", "--out", str(tmp_path / "a.npz")]) == 0
    saved = np.load(tmp_path / "a.npz")
    expected = generate(6, counts=(2, 3))
    for name, array in expected._asdict().items():
        np.testing.assert_array_equal(saved[name], array)
    assert main(["class-tokens", "--split", "a=6", "--out", str(tmp_path / "b.npz")]) == 1
    assert "either length and gamma" in capsys.readouterr().err
