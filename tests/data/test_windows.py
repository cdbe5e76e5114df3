"""The order of windows: a permutation each epoch, different by seed and epoch, uniform, and fixed for ever."""

import hashlib
import math
import struct

import numpy as np
import pytest

from saf_titan.data.windows import WindowOrder, permute


@pytest.mark.parametrize("size", [*range(1, 40), 63, 64, 65, 1000, 1023, 4097])
def test_every_window_once(size: int) -> None:
    windows_N = permute(np.arange(size), size, seed=3, epoch=1)
    np.testing.assert_array_equal(np.sort(windows_N), np.arange(size))


def permute_one(element: int, size: int, seed: int, epoch: int) -> int:
    """The permutation in Python's integers, one element at a time."""
    keys = struct.unpack("<8Q", hashlib.sha512(struct.pack("<3Q", seed, epoch, size)).digest())
    rows = math.isqrt(size - 1) + 1
    columns = math.ceil(size / rows)

    def mixed(value: int, key: int) -> int:
        x = (value * 0x9E3779B97F4A7C15 + key) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return (x ^ x >> 31) >> 32

    row, column = divmod(element, columns)
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        row = (row + mixed(column, even)) % rows
        column = (column + mixed(row, odd)) % columns
    result = row * columns + column
    return result if result < size else permute_one(result, size, seed, epoch)


@pytest.mark.parametrize("size", [1, 2, 7, 100, 2**20 + 7, 10**12])
def test_equals_plain_integer_arithmetic(size: int) -> None:
    elements = sorted({0, size // 3, size // 2, size - 1})
    expected = [permute_one(element, size, 1337, 4) for element in elements]
    assert permute(np.array(elements), size, seed=1337, epoch=4).tolist() == expected


def test_the_order_is_fixed_for_ever() -> None:
    assert permute(np.arange(10), 10, seed=1337, epoch=0).tolist() == [2, 8, 9, 0, 6, 3, 1, 4, 7, 5]


def test_elements_do_not_depend_on_which_are_asked_for_together() -> None:
    whole_N = permute(np.arange(1000), 1000, seed=5, epoch=0)
    assert [int(permute(np.array([i]), 1000, seed=5, epoch=0)[0]) for i in range(0, 1000, 37)] == whole_N[::37].tolist()


def test_seed_and_epoch_change_the_order() -> None:
    orders = [permute(np.arange(500), 500, seed=seed, epoch=epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    # two random orders of 500 agree in about one place
    for i in range(4):
        for j in range(i):
            assert np.sum(np.array(orders[i]) == np.array(orders[j])) < 8


@pytest.mark.parametrize("size", [2, 3, 5, 12, 30])
def test_every_window_is_as_likely_at_every_place(size: int) -> None:
    trials = 3000
    counts_NN = np.zeros((size, size))
    for seed in range(trials):
        counts_NN[np.arange(size), permute(np.arange(size), size, seed=seed, epoch=0)] += 1
    expected = trials / size
    chi2_per_cell = ((counts_NN - expected) ** 2 / expected).sum() / (size - 1) ** 2
    # mean 1, deviation sqrt(2) / (size - 1); five deviations
    assert chi2_per_cell < 1 + 5 * np.sqrt(2) / (size - 1)


def test_neighbours_are_parted() -> None:
    windows_N = permute(np.arange(10_000), 10_000, seed=11, epoch=0)
    steps_N = np.diff(windows_N)
    assert np.mean(np.abs(steps_N)) == pytest.approx(10_000 / 3, rel=0.03)
    assert np.sum(steps_N == 1) < 10
    assert abs(np.corrcoef(windows_N, np.arange(10_000))[0, 1]) < 0.05


def test_all_orders_of_three_appear_about_equally() -> None:
    orders = [tuple(permute(np.arange(3), 3, seed=seed, epoch=0).tolist()) for seed in range(3000)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 6
    assert min(counts) > 350


def test_epochs_follow_one_another() -> None:
    order = WindowOrder(num_windows=7, seed=2, shuffle=True)
    windows_N = order.windows(np.arange(21))
    for epoch in range(3):
        np.testing.assert_array_equal(
            windows_N[7 * epoch : 7 * epoch + 7], permute(np.arange(7), 7, seed=2, epoch=epoch)
        )
    # asked for across an epoch's end
    np.testing.assert_array_equal(order.windows(np.arange(5, 16)), windows_N[5:16])


def test_unshuffled_order_is_the_corpus() -> None:
    order = WindowOrder(num_windows=3, seed=2, shuffle=False)
    assert order.windows(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]
