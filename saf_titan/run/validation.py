"""Validation on a fixed set of held-out windows, whatever the number of ranks."""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from dataclasses import dataclass, replace
from typing import Any

from torchtitan.components.validate import Validator
from torchtitan.config import ParallelismConfig
from torchtitan.distributed import ParallelDims

from saf_titan.data.cursor import CursorLoader


class FixedSetValidator(Validator):
    """torchtitan's validator on all windows of a finite loader.

    The ranks share the windows. If the windows do not divide evenly, the last batch is filled up with sequences whose
    targets are ignored. The loss is the sum over all ranks divided by the number of real targets, so that another
    number of ranks changes the loss only by rounding.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        steps: int = -1
        """Replaced by the number of batches that the windows of the loader need."""

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
        # a pipeline takes a batch as several microbatches
        batch_size = parallelism.pipeline_parallel_microbatch_size if parallel_dims.pp_enabled else local_batch_size
        finite = replace(config.dataloader, infinite=False, batches_per_step=local_batch_size // batch_size)
        loader = finite.build(**shares, local_batch_size=batch_size)
        assert isinstance(loader, CursorLoader)
        super().__init__(
            # -1 would also stop at the end of the loader, but torchtitan warns of it, because ranks could differ
            config=replace(config, steps=loader.num_batches // finite.batches_per_step),
            parallelism=parallelism,
            parallel_dims=parallel_dims,
            **shares,
            local_batch_size=local_batch_size,
            **others,
        )
        # torchtitan makes the loader infinite when a number of steps is given
        self.dl_config = finite
