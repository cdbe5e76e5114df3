"""Test whether the keys that a measure calls important carry the predictions: remove them and compare the loss.

In all layers at once, or in chosen ones, each query loses the best or the worst scored share of its keys, in one of
three ways (see `removal.edit_edges`). Keys are scored in the unchanged model, so every way removes the same edges.
Scores do not depend on tokens behind the query, so no prediction is told its answer. If a measure finds the important
keys, removing its top keys raises the loss much, and removing its bottom keys raises it little.

A query loses ceil(share x its candidates) keys, so at least one. All keys that it sees are candidates, except the first
position where that is kept.

Protocol after arXiv 2606.07604, whose details are not known to us. Legend: B sequences, T time (queries and keys),
N positions whose prediction is measured, V vocabulary, X = H by head and 1 by token, P sequences of the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from saf_titan.analysis.decoder import AnalysedDecoder, keeping_residuals
from saf_titan.analysis.faithfulness import FRACTIONS
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.removal import EdgeWay
from saf_titan.analysis.removed_edges import RemovingEdges, Side, places, visible_keys
from saf_titan.analysis.scores import NEEDS_RESIDUAL, RANDOM, SCORES, Grain, ScoredLayer, random_scores
from saf_titan.analysis.stored_rows import StoredRows
from saf_titan.ops.finite import require_finite

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """What to remove: every combination of metric, way, side, fraction and choice about the first position."""

    grain: Grain = "token"
    metrics: tuple[str, ...] = ()
    """Names of `SCORES[grain]` and "random"; by default all of them."""
    ways: tuple[EdgeWay, ...] = get_args(EdgeWay)
    sides: tuple[Side, ...] = get_args(Side)
    fractions: tuple[float, ...] = FRACTIONS
    """Shares of the keys of a query, each in (0, 1]."""
    spares_first: tuple[bool, ...] = (False, True)
    """Whether the first position is kept."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the random control."""
    layers: tuple[int, ...] = ()
    """Numbers of the layers whose keys are scored and removed, the others stay as they are; all if empty."""
    is_behind_norm: bool = False
    """Whether contributions and norms are those behind a norm between heads and residual stream."""

    def __post_init__(self) -> None:
        if self.grain not in SCORES:
            raise ValueError(f"grain = {self.grain!r} is not one of {', '.join(SCORES)}")
        known = (*SCORES[self.grain], RANDOM)
        if not self.metrics:
            object.__setattr__(self, "metrics", known)
        for name, chosen, allowed in (
            ("metric", self.metrics, known),
            ("way", self.ways, get_args(EdgeWay)),
            ("side", self.sides, get_args(Side)),
        ):
            if wrong := [one for one in chosen if one not in allowed]:
                raise ValueError(f"{name} {wrong[0]!r} is not one of {', '.join(allowed)} (by {self.grain})")
            if twice := [one for n, one in enumerate(chosen) if one in chosen[:n]]:
                raise ValueError(f"{name} {twice[0]!r} is given twice")
        if len(set(self.fractions)) < len(self.fractions):
            raise ValueError(f"a share of keys is given twice: {', '.join(map(str, self.fractions))}")
        if wrong_share := [share for share in self.fractions if not 0 < share <= 1]:
            raise ValueError(f"a share of keys must be in (0, 1], got {wrong_share[0]}")
        if not (self.ways and self.sides and self.fractions and self.spares_first and self.seeds):
            raise ValueError("at least one way, side, share, choice about the first position, and seed is needed")

    @property
    def rankings(self) -> list[tuple[str, int]]:
        """Every (metric, seed) by which keys are ranked; only the random control has more than one seed."""
        return [(m, seed) for m in self.metrics for seed in (self.seeds if m == RANDOM else self.seeds[:1])]

    @property
    def removals(self) -> list[tuple[EdgeWay, bool, Side, float]]:
        return list(product(self.ways, self.spares_first, self.sides, self.fractions))


@dataclass(frozen=True)
class Harm:
    """What one removal does to the predictions of each sequence."""

    metric: str
    seed: int
    way: EdgeWay
    spares_first: bool
    side: Side
    fraction: float
    nll_P: Tensor
    """Rise of the loss, nats a token."""
    kl_P: Tensor
    """KL of the predictions to those of the whole model, KL(whole || removed), nats."""
    flips_P: Tensor
    """Share of positions whose likeliest token is another one, in [0, 1]."""


@dataclass(frozen=True)
class Study:
    """All removals, and the loss of the whole model, nats a token (P,)."""

    settings: Settings
    nll_P: Tensor
    harms: list[Harm] = field(default_factory=list)


@torch.no_grad()
def measure_interventions(
    decoder: AnalysedDecoder,
    tokens_PT: Tensor,
    rows_N: Tensor,
    settings: Settings,
    *,
    batch_size: int = 4,
    store: Path | None = None,
    model: Mapping[str, Any] | None = None,
    resumed: Callable[[int], object] | None = None,
    progress: Progress | None = None,
) -> Study:
    """Remove edges in every combination of the settings.

    Args:
        tokens_PT: sequences without padding.
        rows_N: positions whose prediction of the next token is measured, all below T - 1.
        batch_size: sequences at a time. The logits of the whole model, (B, N, V) in float32, and the ranks of all keys,
            two bytes for each layer, sequence, head or not, query and key, are held at once.
        store: a file of JSON lines that gets the results of each sequence as soon as its batch is done. A call that
            finds the file measures only the sequences that it lacks.
        model: what else the results depend on, such as the name of the model, as values of JSON for the store.
        resumed: called once with the number of sequences that the store has already, if there are any.
        progress: called after every forward with the stage "forward", and the numbers of forwards done and in all.

    Raises ValueError for a layer that there is not, for ALTI without the model's blocks, for positions without a next
    token, for a loss that is not finite, and if the store is of other settings, sequences or another model.
    """
    if len(rows_N) == 0 or int(rows_N.max()) >= tokens_PT.shape[1] - 1:
        raise ValueError("positions to measure must exist and have a next token in the sequence")
    decoder.chosen_layers(settings.layers)
    if NEEDS_RESIDUAL & set(settings.metrics) and not decoder.blocks:
        raise ValueError("ALTI needs the blocks of the model: leave the metric out")
    combinations = [(*ranking, *removal) for ranking in settings.rankings for removal in settings.removals]
    stored = _stored(store, tokens_PT, rows_N, settings, model or {}, len(combinations))
    found = {row["sequence"]: row for row in stored.rows}
    if found:
        _require_same_loss(decoder, tokens_PT, rows_N, next(iter(found.values())), store)
        if resumed:
            resumed(len(found))
    left = torch.tensor([number for number in range(len(tokens_PT)) if number not in found], dtype=torch.int64)
    batches = left.split(batch_size) if len(left) else ()
    total = len(batches) * (1 + len(settings.rankings) * (1 + len(settings.removals)))
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if progress:
            progress("forward", done, total)

    for numbers_B in batches:
        tokens_BT = tokens_PT[numbers_B]
        whole = _Whole(decoder, tokens_BT, rows_N)
        count()
        changes = []
        for metric, seed in settings.rankings:
            generators = [torch.Generator().manual_seed(seed * 1_000_003 + number) for number in numbers_B.tolist()]
            ranks = _rank_keys(decoder, tokens_BT, metric, settings, generators)
            count()
            for removal in settings.removals:
                with watching(decoder.attentions, RemovingEdges(ranks, *removal)):
                    changes.append(torch.stack(whole.change(decoder.logits(tokens_BT, rows_N))))
                count()
        for b, number in enumerate(numbers_B.tolist()):
            harms = [change_3B[:, b].tolist() for change_3B in changes]
            found[number] = {"sequence": number, "loss": whole.nll_B[b].item(), "harms": harms}
            stored.add(found[number])
    rows = [found[number] for number in range(len(tokens_PT))]
    harms_PX3 = torch.tensor([row["harms"] for row in rows], dtype=torch.float64)
    nll_P = torch.tensor([row["loss"] for row in rows], dtype=torch.float64)
    return Study(settings, nll_P, [Harm(*key, *harms_PX3[:, x].T) for x, key in enumerate(combinations)])


def _stored(
    store: Path | None,
    tokens_PT: Tensor,
    rows_N: Tensor,
    settings: Settings,
    model: Mapping[str, Any],
    num_combinations: int,
) -> StoredRows:
    """Open the store: a row for each sequence, with its number, loss and the three numbers of each combination."""

    def check(row: dict[str, Any]) -> None:
        if not 0 <= int(row["sequence"]) < len(tokens_PT) or not isinstance(row["loss"], float):
            raise ValueError(f"sequence {row['sequence']!r} with loss {row['loss']!r}")
        if torch.tensor(row["harms"]).shape != (num_combinations, 3):
            raise ValueError(f"sequence {row['sequence']} lacks results")

    header = {"format": "saf_titan.interventions", **model}
    header |= {"sequences": len(tokens_PT), "length": tokens_PT.shape[1], "positions": rows_N.tolist()}
    header |= asdict(settings) | {"text": sha256(tokens_PT.cpu().numpy().tobytes()).hexdigest()[:16]}
    return StoredRows(
        store,
        header,
        what="intervention results",
        check=check,
        differences={"text": "other sequences of tokens (digest)", "sequences": "another number of sequences"}
        | {name: f"other {name}" for name in ("positions", "metrics", "ways", "sides", "fractions", "seeds", "layers")},
        remedy=_REMEDY,
    )


_REMEDY = "repeat the command that wrote it, or choose another folder, or delete the file to measure all anew"


def _require_same_loss(
    decoder: AnalysedDecoder, tokens_PT: Tensor, rows_N: Tensor, row: dict[str, Any], store: Path | None
) -> None:
    """Raise ValueError if a sequence has another loss than when it was stored: then the weights have changed."""
    number, before = row["sequence"], row["loss"]
    now = _Whole(decoder, tokens_PT[number : number + 1], rows_N).nll_B.item()
    if not math.isclose(now, before, rel_tol=_SAME_LOSS):
        raise ValueError(
            f"{store} is of a model with the loss {before:.6f} on sequence {number}, and here it is {now:.6f}, so the "
            f"weights have changed; {_REMEDY}"
        )


_SAME_LOSS = 1e-4
"""Relative difference of a loss that another batch size or number of threads may make."""
_Change = tuple[Tensor, Tensor, Tensor]


class _Whole:
    """The predictions of the unchanged model on one batch."""

    def __init__(self, decoder: AnalysedDecoder, tokens_BT: Tensor, rows_N: Tensor) -> None:
        self._target_BN = tokens_BT[:, rows_N + 1]
        self._log_p_BNV = decoder.logits(tokens_BT, rows_N).float().log_softmax(-1)
        self._nll_BN = self._loss(self._log_p_BNV, self._target_BN)
        require_finite(self._nll_BN, f"the loss of {decoder.name}")
        self._best_BN = self._log_p_BNV.argmax(-1)

    @staticmethod
    def _loss(log_p_BNV: Tensor, target_BN: Tensor) -> Tensor:
        return -log_p_BNV.gather(-1, target_BN.unsqueeze(-1))[..., 0].double()

    @property
    def nll_B(self) -> Tensor:
        return self._nll_BN.mean(1).cpu()

    def change(self, logits_BNV: Tensor) -> _Change:
        """Return the rise of the loss, the KL and the flips of each sequence, each (B,), for changed logits."""
        found = []
        # one sequence at a time: the vocabulary may be large
        for log_p_NV, logits_NV, target_N, nll_N, best_N in zip(
            self._log_p_BNV, logits_BNV, self._target_BN, self._nll_BN, self._best_BN, strict=True
        ):
            new_NV = logits_NV.float().log_softmax(-1)
            kl = (log_p_NV.exp() * (log_p_NV - new_NV)).sum(-1, dtype=torch.float64).mean()
            rise = (self._loss(new_NV, target_N) - nll_N).mean()
            found.append((rise, kl, (new_NV.argmax(-1) != best_N).double().mean()))
        rise_B, kl_B, flips_B = (torch.stack(column).cpu() for column in zip(*found, strict=True))
        return rise_B, kl_B, flips_B


def _rank_keys(
    decoder: AnalysedDecoder, tokens_BT: Tensor, metric: str, settings: Settings, generators: list[torch.Generator]
) -> dict[int, Tensor]:
    """Return, by layer, the rank of every key among those that its query sees, 0 for the best: int16 (B, X, T, T)."""
    ranks: dict[int, Tensor] = {}
    needs_residual = metric in NEEDS_RESIDUAL
    chosen = decoder.chosen_layers(settings.layers)

    def rank(layer: LayerAttention) -> None:
        if layer.layer not in chosen:
            return
        if metric == RANDOM:
            scores = random_scores(layer, settings.grain, generators)
        else:
            x_BTC = residuals[layer.layer] if needs_residual else None
            one = ScoredLayer(layer, decoder.norm(layer.layer), x_BTC, settings.is_behind_norm)
            scores = SCORES[settings.grain][metric](one)
        ranks[layer.layer] = places(scores, visible_keys(layer))

    with keeping_residuals(decoder.blocks if needs_residual else ()) as residuals, watching(decoder.attentions, rank):
        decoder.run(tokens_BT)
    return ranks


def areas(
    harms: Sequence[Harm],
) -> Iterator[tuple[tuple[str, int, EdgeWay, bool, Side], tuple[Tensor, Tensor, Tensor]]]:
    """Yield the means over the shares of keys, for each metric, seed, way, choice about the first position and side.

    The means are those of the rise of the loss, the KL and the flips, each (P,).
    """
    groups: dict[tuple[str, int, EdgeWay, bool, Side], list[Harm]] = {}
    for harm in harms:
        groups.setdefault((harm.metric, harm.seed, harm.way, harm.spares_first, harm.side), []).append(harm)
    for key, members in groups.items():
        rise_P, kl_P, flips_P = (
            torch.stack([getattr(one, name) for one in members]).mean(0) for name in ("nll_P", "kl_P", "flips_P")
        )
        yield key, (rise_P, kl_P, flips_P)


def measured_positions(length: int, count: int) -> Tensor:
    """Return up to `count` positions at which to measure predictions, spread evenly over the last three quarters.

    The first quarter is left out, because its queries see few keys, so that even one key is a large share of them.
    """
    first, last = length // 4, length - 2
    count = min(count, last - first + 1)
    return torch.linspace(first, last, count).round().long()
