"""Measure the loss on texts longer than a run's sequences, such as `saf_titan.generate --extrapolate` writes.

    python scripts/bench/generate_beyond.py outputs/ordinary outputs/frozen --times 3

Windows of `--times` x `training.seq_len` held-out tokens are cut into stretches of `training.seq_len` tokens. For the
newest checkpoint of each run, the mean loss of each stretch is printed. The run was trained for the first stretch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from saf_titan.data.corpus import open_corpus
from saf_titan.generate.checkpoint import find_source, load_for_generation


@torch.no_grad()
def losses(folder: Path, times: int, num_windows: int) -> list[float]:
    """Return the mean loss of each stretch, in nats a token."""
    source = find_source(folder)
    seq_len = source.run.training.seq_len
    length = times * seq_len
    stream = open_corpus(Path(source.run.data.path), vocab_size=source.run.data.vocab_size).stream("val")
    if len(stream) <= num_windows * length:
        raise SystemExit(
            f"{source.run.data.path} has {len(stream)} held-out tokens, too few for --windows {num_windows}"
        )
    model = load_for_generation(source, length=length, extrapolate=True)
    total_T = torch.zeros(length)
    for number in range(num_windows):
        ids = torch.from_numpy(stream.read(number * length, (number + 1) * length + 1).astype(np.int64))
        total_T += cross_entropy(model(ids[None, :-1])[0].float(), ids[1:], reduction="none")
    return [part.mean().item() for part in (total_T / num_windows).split(seq_len)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--times", type=int, default=3, help="length of the windows in training sequences")
    parser.add_argument("--windows", type=int, default=64)
    args = parser.parse_args()
    for folder in args.runs:
        print(folder, *(f"{loss:.4f}" for loss in losses(folder, args.times, args.windows)))


if __name__ == "__main__":
    main()
