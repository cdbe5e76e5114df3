"""Run by torchrun in test_calibrate.py: calibrate the fake model on this rank's share of the sequences."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.calibrate.exchange import sum_over_ranks
from saf_titan.saf.fit.dense import DensePatterns, dense_patterns
from saf_titan.saf.fit.registry import DENSE_CONTENTS
from saf_titan.saf.plan.agreement import require_agreement
from tests.saf.fake_model import sequences, uneven_model
from tests.saf.plan.test_plan import EXAMPLE

UNEVEN_HEADS = [(2, 3), (0, 2), (0, 0), (2, 0), (0, 3)]


def patterns_bytes(patterns: DensePatterns) -> bytes:
    return patterns.p_NTT.numpy().tobytes() + patterns.kl_N.numpy().tobytes()


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mine = sequences(6).tensor_split(dist.get_world_size())[rank]
    model = uneven_model()
    for batch_size in (2, 6):
        calibration = calibrate(model.attentions, mine.split(batch_size), model, source="fake")
        calibration.save(out / f"batch{batch_size}.rank{rank}")
    for content in DENSE_CONTENTS:
        patterns = dense_patterns(model.attentions, mine.split(2), model, UNEVEN_HEADS, content, seed=5)
        (out / f"{content}.rank{rank}").write_bytes(patterns_bytes(patterns))
    if rank == 0:
        model.attentions[2].q_VHD[:, 3] = float("nan")
    try:
        calibrate(model.attentions, mine.split(2), model)
    except ValueError as error:
        (out / f"error.rank{rank}").write_text(str(error))
    total = sum_over_ranks(torch.tensor([1.0, rank]), None)
    assert total.tolist() == [dist.get_world_size(), sum(range(dist.get_world_size()))]
    # the same step on every rank is the same plan, and another one on the last rank is not
    for name, step in (("agreed", 0), ("disagreed", rank // 3)):
        try:
            require_agreement(replace(EXAMPLE, step=step))
            (out / f"{name}.rank{rank}").write_text("")
        except RuntimeError as error:
            (out / f"{name}.rank{rank}").write_text(str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
