"""Validation on generated sequences, by length and number of pairs: loss, right answers, attention on what they follow
from.

Legend: B batch, T time, V vocabulary.
"""

from __future__ import annotations

# must be imported before any torchtitan module
from saf_titan import compat  # noqa: F401  # isort: skip

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.validate import Validator
from torchtitan.tools import utils

from saf_titan.config.generated_data import FIRST_EVALUATION_SEED
from saf_titan.data.cursor import CursorLoader
from saf_titan.data.rows import RowLoader
from saf_titan.report.rows import AccuracyRow, RelevanceRow
from saf_titan.run.metrics import RunMetrics
from saf_titan.run.relevance import RelevanceSums


def count_answers(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return six sums over a batch, float64 [6], for `AnswerValidator`.

    They are: the loss in nats, the number of right answers, the number of labels, the share of right answers of each
    sequence, the number of sequences with all answers right, and the number of sequences. A sequence without labels
    is not counted.

    labels_BT: target ids, int64; IGNORE_INDEX where no answer is asked for.
    """
    is_asked_BT = labels_BT != IGNORE_INDEX
    num_asked_B = is_asked_BT.sum(1)
    num_right_B = ((logits_BTV.argmax(-1) == labels_BT) & is_asked_BT).sum(1)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), reduction="sum")
    is_example_B = num_asked_B > 0
    share_B = num_right_B.double() / num_asked_B.clamp(min=1)
    all_right_B = is_example_B & (num_right_B == num_asked_B)
    sums = (loss, num_right_B.sum(), num_asked_B.sum(), share_B.sum(), all_right_B.sum(), is_example_B.sum())
    return torch.stack([number.double() for number in sums])


class AnswerValidator(Validator):
    """torchtitan's validator on sets of synthetic sequences, the same sets each time and on any number of ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        cells: tuple[tuple[int, int], ...] = ()
        """(length, pairs) of each set."""

    metrics_processor: RunMetrics

    def __init__(self, config: Config, **others: Any) -> None:
        super().__init__(config, **others)
        self._cells = config.cells

    @torch.no_grad()
    def validate(self, model_parts: list[nn.Module], step: int) -> None:
        """Write an `AccuracyRow` and a `RelevanceRow` for each set, and the mean loss per label over all sets."""
        (model,) = model_parts
        model.eval()
        sums, looks = zip(*(self._count(model, length, pairs, step) for length, pairs in self._cells), strict=True)
        model.train()
        loss, _, labels, *_ = torch.stack(sums).sum(0).tolist()
        self.metrics_processor.log_validation(loss=loss / labels, step=step)
        for (length, pairs), of_cell in zip(self._cells, sums, strict=True):
            loss, right, labels, share, all_right, examples = of_cell.tolist()
            row = AccuracyRow(
                step=step,
                phase=self.metrics_processor.validation_phase,
                length=length,
                pairs=pairs,
                examples=round(examples),
                accuracy=right / labels,
                example_accuracy=share / examples,
                all_right=all_right / examples,
                loss=loss / labels,
            )
            self.metrics_processor.log_accuracy(row)
        for relevance in looks:
            if relevance is not None:
                self.metrics_processor.log_relevance(relevance)

    def _count(self, model: nn.Module, length: int, pairs: int, step: int) -> tuple[Tensor, RelevanceRow | None]:
        """Return the sums of `count_answers` over one set on all ranks, and where attention looked; a collective."""
        config: CursorLoader.Config = self.dl_config
        if isinstance(config, RowLoader.Config):
            config = replace(config, seed=FIRST_EVALUATION_SEED + length + pairs, pairs=pairs)
        loader = replace(config, infinite=False).build(
            dp_world_size=self.dp_world_size,
            dp_rank=self.dp_rank,
            seq_len=length,
            # about as many tokens in a batch as in training
            local_batch_size=max(1, self.local_batch_size * self.seq_len // length),
        )
        sums = torch.zeros(6, dtype=torch.float64, device=utils.device_type)
        looks = RelevanceSums(model, config.data, pairs, sums.device)
        for batch, labels in loader:
            on_device = {name: tensor.to(utils.device_type) for name, tensor in batch.items()}
            inputs_BT, labels_BT, others = self.post_dataloading_process(
                on_device, labels.to(utils.device_type), [model]
            )
            with self.validation_context():
                with looks.following(inputs_BT, labels_BT):
                    logits_BTV = model(inputs_BT, **others)
                looks.add(logits_BTV)
                sums += count_answers(logits_BTV, labels_BT)
        group = self.parallel_dims.get_mesh("batch").get_group() if self.parallel_dims.dp_enabled else None
        if group is not None:
            dist.all_reduce(sums, group=group)
        phase = self.metrics_processor.validation_phase
        return sums.cpu(), looks.row(step=step, phase=phase, length=length, group=group)
