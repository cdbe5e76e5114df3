"""Where attention looks when a generated sequence asks something, added up over the forwards of a validation.

Legend: B sequences, T time, V vocabulary, L layers, H query heads, M questions, X cells of an axis of a DTAP map.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.relevance import dtap
from saf_titan.config.own_sections import DataSection
from saf_titan.data.generate import questions
from saf_titan.layers.attention import SAFAttention
from saf_titan.report.rows import RelevanceRow

THRESHOLD = 0.5
"""The attention on relevant tokens that makes a head confident."""
BINS = 10
"""Cells of each axis of a DTAP map; 0.5 is a border of them."""
_BLOCK_ELEMENTS = 1 << 22
"""About so many entries of the attention (B, H, R, J) of R queries are made at once."""


class RelevanceSums:
    """The sums over the questions of one set of sequences, which ranks add up at the end."""

    def __init__(self, model: nn.Module, data: DataSection, pairs: int, device: torch.device) -> None:
        """pairs: of mqar; 0 for those of `data`."""
        self._attentions = [module for module in model.modules() if isinstance(module, SAFAttention)]
        self._data, self._pairs = data, pairs
        L, H = len(self._attentions), max((attention.num_heads for attention in self._attentions), default=0)
        self._mass_LH, self._confident_LH = (torch.zeros(L, H, dtype=torch.float64, device=device) for _ in range(2))
        self._dtap_LXX = torch.zeros(L, BINS, BINS, dtype=torch.float64, device=device)
        self._num_questions = torch.zeros(1, dtype=torch.float64, device=device)
        self._of_layer: dict[int, Tensor] = {}

    @contextmanager
    def following(self, inputs_BT: Tensor, labels_BT: Tensor) -> Iterator[None]:
        """Watch one forward of these sequences; `add` comes after it.

        A model whose queries, keys and values are one matrix is not watched: it has no layer that hands them over.
        """
        if not self._attentions:
            yield
            return
        found = questions(self._data, inputs_BT.cpu().numpy(), labels_BT.cpu().numpy(), pairs=self._pairs)
        self._row_M, self._position_M, self._relevant_MT = (
            torch.from_numpy(array).to(inputs_BT.device) for array in found
        )
        self._label_M = labels_BT[self._row_M, self._position_M]
        self._of_layer = {}
        # a compiled model would run without the hooks
        with torch.compiler.set_stance("force_eager"), watching(self._attentions, self._look):
            yield

    def _look(self, layer: LayerAttention) -> None:
        """Keep the mass of each question in each head of a layer, float64 (M, H)."""
        (B, T), H = layer.v_BTKD.shape[:2], len(layer.heads)
        mass_MH = torch.zeros(len(self._row_M), H, dtype=torch.float64, device=self._mass_LH.device)
        size = max(_BLOCK_ELEMENTS // (B * H * T), 1)
        for start in range(0, T, size):
            stop = min(start + size, T)
            here = ((self._position_M >= start) & (self._position_M < stop)).nonzero()[:, 0]
            if not len(here):
                continue
            p_BHRJ = layer.rows(start, stop)
            p_MHJ = p_BHRJ[self._row_M[here], :, self._position_M[here] - start]
            # rounding may carry the sum of a row a hair beyond 1
            mass_MH[here] = (p_MHJ.double() * self._relevant_MT[here, None, :stop]).sum(2).clamp(0, 1)
        self._of_layer[layer.layer] = mass_MH
        heads = torch.tensor(layer.heads, device=mass_MH.device)
        self._mass_LH[layer.layer, heads] += mass_MH.sum(0)
        self._confident_LH[layer.layer, heads] += (mass_MH >= THRESHOLD).double().sum(0)

    def add(self, logits_BTV: Tensor) -> None:
        """Take the answers of the forward that was followed."""
        if not self._attentions:
            return
        logits_MV = logits_BTV[self._row_M, self._position_M].float()
        right_M = logits_MV.softmax(-1).gather(1, self._label_M[:, None])[:, 0]
        self._num_questions += len(self._row_M)
        for layer, mass_MH in self._of_layer.items():
            mass_M = mass_MH.mean(1)
            # a model that has diverged has no place on the map
            is_finite_M = mass_M.isfinite() & right_M.isfinite()
            if bool(is_finite_M.any()):
                pair = (number_M[is_finite_M].double().cpu().numpy() for number_M in (mass_M, right_M))
                counts = dtap(*pair, bins=BINS) * int(is_finite_M.sum())
                self._dtap_LXX[layer] += torch.from_numpy(counts).to(self._dtap_LXX)

    def row(self, *, step: int, phase: str, length: int, group: dist.ProcessGroup | None) -> RelevanceRow | None:
        """Return the row of all ranks of `group`, a collective; None if nothing was asked or could be watched.

        group: None for a single rank.
        """
        if not self._attentions:
            return None
        if group is not None:
            for sums in (self._mass_LH, self._confident_LH, self._dtap_LXX, self._num_questions):
                dist.all_reduce(sums, group=group)
        questions = round(self._num_questions.item())
        if not questions:
            return None
        has_output_LH = torch.zeros(self._mass_LH.shape, dtype=torch.bool)
        for layer, attention in enumerate(self._attentions):
            has_output_LH[layer, list(attention.output_heads)] = True

        def shares(sums_LH: Tensor) -> tuple[tuple[float, ...], ...]:
            share_LH = (sums_LH.cpu() / questions).masked_fill(~has_output_LH, math.nan)
            return tuple(tuple(round(share, 6) for share in of_layer) for of_layer in share_LH.tolist())

        return RelevanceRow(
            step=step,
            phase=phase,
            length=length,
            pairs=self._pairs,
            questions=questions,
            mass=shares(self._mass_LH),
            confidence=shares(self._confident_LH),
            dtap=tuple(tuple(map(round, cells)) for cells in self._dtap_LXX.flatten(1).tolist()),
        )
