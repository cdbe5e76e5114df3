"""Run by torchrun in test_calibrate.py: calibrate the fake model on this rank's share, rank 0 saves the result."""

from __future__ import annotations

import sys

import torch.distributed as dist

from saf_titan.saf.calibrate import calibrate
from tests.saf.fake_model import FakeAttention, FakeModel, sequences


def main(out: str, num_sequences: int, batch_size: int, nan_layer: int) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # one static layer and uneven live heads, so that ranks own different numbers of heads
    model = FakeModel([FakeAttention(0), FakeAttention(1, live=()), FakeAttention(2, live=(0, 1, 3), num_key_heads=2)])
    if nan_layer >= 0 and rank == 0:
        model.attentions[nan_layer].q_VHD[:, 3] = float("nan")
    mine = sequences(num_sequences).tensor_split(world_size)[rank]
    try:
        calibration = calibrate(model.attentions, mine.split(batch_size), model, source="fake")
    except ValueError as error:
        print(f"rank {rank}: {error}", flush=True)
        raise SystemExit(3) from error
    finally:
        dist.destroy_process_group()
    calibration.save(f"{out}.{rank}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
