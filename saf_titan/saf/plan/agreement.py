"""All ranks of a job must have derived the same plan before any of them installs it."""

from __future__ import annotations

import torch.distributed as dist

from saf_titan.saf.plan.plan import StaticPlan


def require_agreement(plan: StaticPlan) -> None:
    """Compare the plan's digest over all ranks, in a collective call; do nothing without a process group.

    Raises RuntimeError on every rank if the digests differ.
    """
    if not dist.is_initialized():
        return
    digests: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, plan.digest)
    if len(set(digests)) > 1:
        raise RuntimeError(f"ranks derived different plans, digests {digests}; nothing was installed")
