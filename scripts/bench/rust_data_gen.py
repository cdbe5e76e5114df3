"""Measure the speed of the generators on one thread: MQAR against the published code, class tokens against NumPy.

    python scripts/bench/rust_data_gen.py --rounds 5

Times are medians of processor time over rounds in which all generators take turns. Ours fill batches of `--rows` rows
in arrays that are reused, as in a training loop. With `--new-arrays` each call makes new arrays, as the NumPy code
always does. `--rows 20000` shows the cost of batches that do not fit into the caches.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from rust_data import class_tokens, mqar

# number of rows in a round, for our generators and for the others
OUR_ROWS = 20_000
REFERENCE_ROWS = 300
CLASSES, DISTINCT, COMMON, GAMMA = 4, 4, 64, 0.1


def published_mqar(rows: int, vocab_size: int, length: int, pairs: int, power_a: float = 0.01) -> None:
    """Do the work of the published generator: for each row, draw keys, values and slots without replacement."""
    half = vocab_size // 2

    def draw(choices: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        table = np.tile(choices, (rows, 1))
        return np.apply_along_axis(np.random.choice, 1, table, replace=False, size=pairs, p=weights)

    keys, values = draw(np.arange(1, half)), draw(np.arange(half, vocab_size))
    slots = (length - 2 * pairs) // 2
    weights = power_a * np.arange(1, slots + 1) ** (power_a - 1)
    gaps = draw(np.arange(slots), weights / weights.sum())
    inputs, labels = np.zeros((rows, length), dtype=np.int64), np.full((rows, length), -100, dtype=np.int64)
    inputs[:, 0 : 2 * pairs : 2], inputs[:, 1 : 2 * pairs : 2] = keys, values
    np.put_along_axis(inputs, 2 * pairs + 2 * gaps, keys, axis=1)
    np.put_along_axis(labels, 2 * pairs + 2 * gaps, values, axis=1)
    inputs[inputs == 0] = np.random.randint(vocab_size, size=inputs.shape)[inputs == 0]


def numpy_class_rows(rows: int, length: int) -> None:
    """Draw each row with its own generator and one weighted choice, so that a row depends only on its number."""
    first_common = CLASSES * DISTINCT
    for row in range(rows):
        random = np.random.default_rng((0, row))
        label = random.integers(CLASSES)
        types = np.concatenate([label * DISTINCT + np.arange(DISTINCT), first_common + np.arange(COMMON)])
        weights = np.repeat([GAMMA / DISTINCT, (1 - GAMMA) / COMMON], [DISTINCT, COMMON])
        random.choice(types, size=length - 1, p=weights)


def numpy_class_batch(rows: int, length: int) -> None:
    """Draw all rows at once from one generator, which is faster, but then a row depends on the batch."""
    random = np.random.default_rng(0)
    labels = random.integers(CLASSES, size=(rows, 1))
    distinct = labels * DISTINCT + random.integers(DISTINCT, size=(rows, length))
    common = CLASSES * DISTINCT + random.integers(COMMON, size=(rows, length))
    np.where(random.random((rows, length)) < GAMMA, distinct, common)


def microseconds_a_row(work: Callable[[], object], rows: int, calls: int = 1) -> float:
    start = time.process_time()
    for _ in range(calls):
        work()
    return 1e6 * (time.process_time() - start) / (rows * calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--new-arrays", action="store_true")
    args = parser.parse_args()

    def ours(generate: Callable[..., object], **config: float) -> Callable[[], object]:
        out = None if args.new_arrays else generate(args.rows, threads=1, **config)
        return lambda: generate(args.rows, threads=1, out=out, **config)

    contests: dict[str, tuple[Callable[[], object], list[tuple[str, int, Callable[[], object]]]]] = {}
    for length, pairs in ((512, 8), (64, 4), (256, 64)):
        contests[f"mqar, length {length}, {pairs} pairs"] = (
            ours(mqar.generate, length=length, pairs=pairs),
            [
                (
                    "published",
                    REFERENCE_ROWS,
                    lambda length=length, pairs=pairs: published_mqar(REFERENCE_ROWS, 8192, length, pairs),
                )
            ],
        )
    for length in (32, 512):
        config = {"classes": CLASSES, "distinct": DISTINCT, "common": COMMON, "gamma": GAMMA, "length": length}
        contests[f"class tokens, length {length}"] = (
            ours(class_tokens.generate, **config),
            [
                ("NumPy by row", REFERENCE_ROWS, lambda length=length: numpy_class_rows(REFERENCE_ROWS, length)),
                ("NumPy by batch", args.rows, lambda length=length: numpy_class_batch(args.rows, length)),
            ],
        )
    calls = max(1, OUR_ROWS // args.rows)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.rounds):
        for name, (our_work, others) in contests.items():
            times.setdefault((name, "rust_data"), []).append(microseconds_a_row(our_work, args.rows, calls))
            for other, rows, work in others:
                times.setdefault((name, other), []).append(microseconds_a_row(work, rows))
    for (name, engine), runs in times.items():
        ratio = statistics.median(runs) / statistics.median(times[(name, "rust_data")])
        print(f"{name:<32}{engine:<16}{statistics.median(runs):>9.2f} us a row{ratio:>9.1f}x")


if __name__ == "__main__":
    main()
