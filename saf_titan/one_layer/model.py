"""The one-layer model f(X) = W_OV X^T softmax(X W_QK x_T), for many seeds at once.

Source: arXiv 2608.06776, eq. (1). There is no 1/sqrt(d), no bias, no position and no residual; the query row x_T is
part of X. W_QK = W_K W_Q^T and W_OV = W_O W_V are each one matrix (collapsed) or a product of two (factorized).
Embeddings are one-hot, because gradient descent with any other orthonormal embedding does the same in another basis.

Legend: S seeds, B sequences, T tokens of a sequence, V token types (and width of the model), M outputs, K classes.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saf_titan.one_layer.setting import Parametrization, Task


class Output(NamedTuple):
    """The result of a forward."""

    logits_SBM: Tensor
    attention_SBT: Tensor
    """Attention of the last token to each token; sums to 1 over T."""


class OneLayer(nn.Module):
    """S independent models whose parameters are stacked into common tensors."""

    def __init__(
        self,
        parametrization: Parametrization,
        task: Task,
        *,
        seeds: int,
        num_outputs: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """
        Args:
            num_outputs: M, rows of W_O; None for one output a class. With more outputs than classes, for example a
                softmax over the whole vocabulary, only the first K are ever the right answer.

        Raises ValueError if there are fewer outputs than classes.
        """
        super().__init__()
        M = task.classes if num_outputs is None else num_outputs
        if task.classes > M:
            raise ValueError(f"num_outputs = {M} leaves no output for some of the {task.classes} classes")
        V = task.vocab_size
        self.task, self.parametrization, self.seeds = task, parametrization, seeds

        def matrices(factorized: bool, rows: int) -> nn.ParameterList:
            shapes = [(rows, V), (V, V)] if factorized else [(rows, V)]
            return nn.ParameterList([torch.zeros(seeds, *shape, dtype=dtype) for shape in shapes])

        self.qk = matrices(parametrization[0] == "F", V)
        """W_QK (S, V, V), or W_K and W_Q^T (S, V, V) each."""
        self.ov = matrices(parametrization[2] == "F", M)
        """W_OV (S, M, V), or W_O (S, M, V) and W_V (S, V, V)."""

    def circuits(self) -> tuple[Tensor, Tensor]:
        """Return W_QK (S, V, V) and W_OV (S, M, V), multiplied out."""
        qk, ov = (matrices[0] if len(matrices) == 1 else matrices[0] @ matrices[1] for matrices in (self.qk, self.ov))
        return qk, ov

    def forward(self, tokens_SBT: Tensor) -> Output:
        """tokens int64 (S, B, T); the last token of a sequence is its query."""
        qk_SVV, ov_SMV = self.circuits()
        S, B, _ = tokens_SBT.shape
        query_SB = tokens_SBT[:, :, -1]
        # with one-hot embeddings a score is one entry of W_QK
        column_SVB = qk_SVV.gather(2, query_SB[:, None, :].expand(S, qk_SVV.shape[1], B))
        attention_SBT = column_SVB.mT.gather(2, tokens_SBT).softmax(2)
        # ... and the mean of the embeddings under attention holds the attention mass on each token type
        mass_SBV = torch.zeros(S, B, qk_SVV.shape[1], dtype=qk_SVV.dtype).scatter_add(2, tokens_SBT, attention_SBT)
        return Output(mass_SBV @ ov_SMV.mT, attention_SBT)

    @torch.no_grad()
    def init_random(self, std: float, first_seed: int) -> None:
        """Draw every entry from N(0, std^2); model s with the seed `first_seed` + s, whatever the number of models."""
        for s in range(self.seeds):
            generator = torch.Generator().manual_seed(first_seed + s)
            for parameter in self.parameters():
                drawn = torch.randn(parameter.shape[1:], generator=generator, dtype=torch.float64)
                parameter[s] = drawn * std

    @torch.no_grad()
    def init_aligned(self, singular_value: float) -> None:
        """Start as the theory assumes: collapsed circuits at zero, factorized ones with two factors of equal size.

        singular_value: the nonzero singular values of a factorized circuit at the start.
        """
        task, K, C = self.task, self.task.classes, self.task.distinct
        if len(self.qk) == 2:
            k_V, query = _qk_direction(task), task.vocab_size - 1
            self.qk[0].zero_()
            self.qk[1].zero_()
            self.qk[0][:, :, 0] = sqrt(singular_value) * k_V / k_V.norm()
            self.qk[1][:, 0, query] = sqrt(singular_value)
        if len(self.ov) == 2:
            # K - 1 equal singular values, with left vectors that are orthogonal to (1, ..., 1)
            basis_KK = torch.linalg.svd(torch.eye(K, dtype=torch.float64) - 1 / K).U[:, : K - 1]
            types_VK = torch.zeros(task.vocab_size, K, dtype=torch.float64)
            for c in range(K):
                types_VK[c * C : (c + 1) * C, c] = 1 / sqrt(C)
            self.ov[0].zero_()
            self.ov[1].zero_()
            self.ov[0][:, :K, : K - 1] = sqrt(singular_value) * basis_KK.to(self.ov[0])
            self.ov[1][:, : K - 1] = sqrt(singular_value) * (types_VK @ basis_KK).mT.to(self.ov[1])


def _qk_direction(task: Task) -> Tensor:
    """Return k, the mean embedding of distinct types minus that of all other types: float64 (V,)."""
    k_V = torch.full((task.vocab_size,), -1 / task.uninformative, dtype=torch.float64)
    num_distinct = task.classes * task.distinct
    k_V[:num_distinct] = 1 / num_distinct
    return k_V


@torch.no_grad()
def scalars(model: OneLayer) -> tuple[Tensor, Tensor]:
    """Return the two scalars of the theory, gap and v, measured on the matrices: float64 (S,) each.

    The gap is the mean score of distinct types minus the mean score of all other types, for the query. v is the
    coefficient of the projection of W_OV onto sum_c (1_c - 1/K) b_c^T; see `theory`.
    """
    task, K, C = model.task, model.task.classes, model.task.distinct
    qk_SVV, ov_SMV = (matrix.double() for matrix in model.circuits())
    gap_S = qk_SVV[:, :, task.vocab_size - 1] @ _qk_direction(task)
    line_KV = (torch.eye(K, dtype=torch.float64) - 1 / K).repeat_interleave(C, dim=1)
    v_S = (ov_SMV[:, :K, : K * C] * line_KV).sum((1, 2)) / line_KV.square().sum()
    return gap_S, v_S
