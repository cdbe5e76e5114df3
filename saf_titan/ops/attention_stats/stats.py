"""The statistics of attention heads over a set of sequences, and their checks.

Legend: B sequences, T time (query i, key j, lag k = i - j), H query heads, K kv heads, D head dim,
P blocks of the pooled picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class AttentionStats:
    """Statistics of the causal attention P[s, h, i, j] of H heads over B sequences s, in O(T) memory per head.

    `Pbar` is the mean of P over sequences. All tensors are float64, on the device of the inputs.
    Queries or keys that are not finite give statistics that are not finite.
    """

    num_sequences: int
    seq_len: int
    variance_H: Tensor
    """Variance of each cell over sequences (divisor B - 1), averaged over all T * T cells. The zeros above the diagonal
    count, as in the published score. In [0, 1/2]; a lower value means a more static head."""
    kl_H: Tensor
    """Mean over sequences s and rows i of KL(P_s[i] || Pbar[i]), in nats per row. In [0, log B]; 0 for a head whose
    attention does not depend on its input."""
    neg_entropy_H: Tensor
    """sum_ij Pbar log Pbar in nats, not divided by T. This is the part of the fit's KL that the fit cannot change."""
    column_mass_HT: Tensor
    """c[j] = sum_i Pbar[i, j]; sums to T."""
    diagonal_mass_HT: Tensor
    """d[k] = sum_i Pbar[i, i - k]; sums to T. The compact fit needs only this and `column_mass_HT` of Pbar."""
    entropy_H: Tensor
    """Entropy of a row divided by the log of the number of keys it sees, averaged over sequences and rows i >= 1. Row 0
    is left out because it sees one key only. In [0, 1]; 1 means uniform attention. 0 for T = 1."""
    mean_map_HPP: Tensor
    """Pbar pooled to P x P blocks for pictures. An entry is the attention that a row of a block of queries gives to a
    block of keys, averaged over the rows of the block."""

    @property
    def causal_variance_H(self) -> Tensor:
        """Return the variance averaged over the T (T + 1) / 2 causal cells only."""
        return self.variance_H * (2 * self.seq_len / (self.seq_len + 1))

    @property
    def sink_mass_H(self) -> Tensor:
        """Return the mean attention on the first key, in [0, 1]."""
        return self.column_mass_HT[:, 0] / self.seq_len

    def recent_mass_H(self, num_keys: int = 64) -> Tensor:
        """Return the mean attention on the `num_keys` most recent keys (the query's own included), in [0, 1]."""
        return self.diagonal_mass_HT[:, :num_keys].sum(1) / self.seq_len


def check_inputs(
    q_BTHD: Tensor, k_BTKD: Tensor, map_size: int, window: int | None = None, softcap: float | None = None
) -> None:
    """Raise ValueError on shapes that attention statistics cannot be computed from."""
    if q_BTHD.ndim != 4 or k_BTKD.ndim != 4:
        raise ValueError(f"q and k must be (B, T, heads, D), got {tuple(q_BTHD.shape)} and {tuple(k_BTKD.shape)}")
    B, T, H, D = q_BTHD.shape
    K = k_BTKD.shape[2]
    if k_BTKD.shape != (B, T, K, D) or K == 0 or H % K:
        raise ValueError(
            f"k must be (B={B}, T={T}, K, D={D}) with K dividing the {H} query heads, got {tuple(k_BTKD.shape)}"
        )
    if B < 2:
        raise ValueError(f"the variance over sequences needs at least 2 sequences, got {B}: calibrate on more")
    if T < 1 or map_size < 1:
        raise ValueError(f"the sequence length and map_size must be at least 1, got {T} and {map_size}")
    if window is not None and window < 2:
        raise ValueError(f"a window of keys must hold at least 2, got {window}")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap must be above 0, got {softcap}")


def log_num_keys(T: int, window: int | None, device: torch.device) -> Tensor:
    """Return the log of the number of keys that each of T queries sees, float64 (T,)."""
    return torch.arange(1, T + 1, dtype=torch.float64, device=device).clamp(max=window or T).log()


def cap_scores(scores: Tensor, softcap: float | None) -> Tensor:
    """Return softcap * tanh(scores / softcap), or the scores unchanged if `softcap` is None."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def hidden_keys(start: int, stop: int, window: int | None, device: torch.device) -> Tensor:
    """Return a bool mask (R, stop): true where query i, start <= i < stop, does not see key j.

    A query does not see later keys, nor keys that are farther back than the window.
    """
    lag_RJ = torch.arange(start, stop, device=device)[:, None] - torch.arange(stop, device=device)
    return lag_RJ < 0 if window is None else (lag_RJ < 0) | (lag_RJ >= window)


def diagonal_sums(rows_XRJ: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the sums of the last R of J causal rows by lag k = 0 .. J - 1, float64 (..., J).

    Keys after the query must be zero. `dtype` is the type of the sums over the R rows.

    Viewed with rows that are one element longer, the same memory has row r shifted by r to the left, so that equal lags
    are in one column: lag k in column J - R - k. Elements that leave at the left come in at the right, one row higher
    and J + 1 columns further on, where only the zeros of later keys are.
    """
    R, J = rows_XRJ.shape[-2:]
    skewed = F.pad(rows_XRJ.flatten(-2), (0, R)).unflatten(-1, (R, J + 1))
    columns_J = (J - R - torch.arange(J, device=rows_XRJ.device)) % (J + 1)
    return skewed.sum(-2, dtype=dtype)[..., columns_J].double()


def pooling_matrix(T: int, map_size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a 0/1 matrix (T, P) that assigns each position to one of P = min(T, map_size) nearly equal blocks."""
    P = min(T, map_size)
    block_T = torch.arange(T, device=device) * P // T
    return torch.nn.functional.one_hot(block_T, P).to(dtype)
