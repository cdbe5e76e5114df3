"""Autocast for layers with static heads: the dtypes are those of torch's attention, so that a freeze changes none."""

from __future__ import annotations

import torch
from torch import Tensor


def cast_as_autocast(
    q_BTUD: Tensor | None, k_BTKD: Tensor | None, v_BTKD: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Cast q, k and v to the dtype of torch.autocast where it is on for their device; float64 stays, as in torch."""
    device = v_BTKD.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return q_BTUD, k_BTKD, v_BTKD
    dtype = torch.get_autocast_dtype(device)

    def cast(x: Tensor) -> Tensor:
        return x if x.dtype == torch.float64 else x.to(dtype)

    q, k = (None if x is None else cast(x) for x in (q_BTUD, k_BTKD))
    return q, k, cast(v_BTKD)
