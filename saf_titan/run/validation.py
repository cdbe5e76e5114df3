"""Validation on a fixed set of held-out windows, whatever the number of ranks."""

from __future__ import annotations

# first: it must precede every other torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from dataclasses import dataclass, replace
from typing import Any

from torchtitan.components.validate import Validator
from torchtitan.config import ParallelismConfig
from torchtitan.distributed import ParallelDims

from saf_titan.data.cursor import CursorLoader


class FixedSetValidator(Validator):
    """torchtitan's validator on the whole of a finite loader.

    Ranks take turns in the windows. Where these do not divide among the ranks, the last batch is filled up with
    sequences whose targets are ignored; the loss is the sum over all ranks divided by their number of real targets. So
    the number of ranks changes the order of the sum, and the loss by no more than rounding.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        steps: int = -1
        """Overwritten: the number of batches that hold the windows of the loader."""

    def __init__(
        self,
        config: Config,
        *,
        parallelism: ParallelismConfig,
        parallel_dims: ParallelDims,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **others: Any,
    ) -> None:
        shares = {"dp_world_size": dp_world_size, "dp_rank": dp_rank, "seq_len": seq_len}
        # a pipeline takes a batch in pieces
        batch_size = parallelism.pipeline_parallel_microbatch_size if parallel_dims.pp_enabled else local_batch_size
        finite = replace(config.dataloader, infinite=False, batches_per_step=local_batch_size // batch_size)
        loader = finite.build(**shares, local_batch_size=batch_size)
        assert isinstance(loader, CursorLoader)
        super().__init__(
            # -1 would stop by itself too, but torchtitan warns of it: its loaders may differ in length
            config=replace(config, steps=loader.num_batches // finite.batches_per_step),
            parallelism=parallelism,
            parallel_dims=parallel_dims,
            **shares,
            local_batch_size=local_batch_size,
            **others,
        )
        # torchtitan makes the loader of a given number of steps endless
        self.dl_config = finite
