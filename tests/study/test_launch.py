"""The words that start a run."""

from __future__ import annotations

import sys
from pathlib import Path

from saf_titan.study.launch import command
from saf_titan.study.schema import Launch

TRAINER = ["-m", "saf_titan.train", "--config", "run.toml"]


def test_one_rank_is_a_plain_process() -> None:
    assert command(Launch(), Path("run.toml")) == [sys.executable, *TRAINER]


def test_several_ranks_go_through_torchrun() -> None:
    words = command(Launch(nproc_per_node=4, shutdown_timeout=90), Path("run.toml"))
    assert words[:5] == [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "4"]
    assert words[words.index("--shutdown-timeout") + 1] == "90"
    assert words[-4:] == TRAINER


def test_several_nodes_have_a_prefix_and_a_rendezvous() -> None:
    launch = Launch(nproc_per_node=8, nodes=2, rendezvous="node0:29500", prefix=("srun", "--ntasks-per-node=1"))
    words = command(launch, Path("run.toml"))
    assert words[:3] == ["srun", "--ntasks-per-node=1", sys.executable]
    assert words[words.index("--nnodes") + 1] == "2"
    assert words[words.index("--rdzv_endpoint") + 1] == "node0:29500"
    assert launch.world_size == 16
