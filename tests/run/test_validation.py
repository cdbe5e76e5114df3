"""Validation goes over a fixed set of windows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig

from saf_titan.data.loader import ShardLoader
from saf_titan.run.validation import FixedSetValidator
from tests.data.corpus import write_corpus

T, VOCAB = 8, 50


class Bigrams(nn.Module):
    """Logits that depend on the last token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 9])
def test_the_loss_is_the_mean_over_the_first_windows_whatever_the_batch(tmp_path: Path, batch: int) -> None:
    torch.manual_seed(0)
    ids = torch.randint(VOCAB, (12 * T + 1,))
    write_corpus(tmp_path, train=range(20), val=ids.numpy(), vocab_size=VOCAB, eot=0)
    model = Bigrams()
    losses = []
    metrics = SimpleNamespace(ntokens_since_last_log=0, log_validation=lambda loss, step: losses.append(loss))
    off = dict.fromkeys(("dp_enabled", "pp_enabled", "cp_enabled", "dp_cp_enabled"), False)
    loader = ShardLoader.Config(path=str(tmp_path), split="validation", shuffle=False, max_tokens=5 * T)
    validator = FixedSetValidator.Config(enable=True, dataloader=loader).build(
        parallelism=ParallelismConfig(),
        dp_world_size=1,
        dp_rank=0,
        tokenizer=None,
        parallel_dims=SimpleNamespace(**off),
        loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCAB).build(compile_config=CompileConfig()),
        validation_context=torch.no_grad,
        metrics_processor=metrics,
        seq_len=T,
        local_batch_size=batch,
    )
    for step in (1, 2):
        validator.validate([model], step)
    # the second half of 12 windows, its first five
    first = 6 * T
    x_N, y_N = ids[first : first + 5 * T], ids[first + 1 : first + 5 * T + 1]
    expected = nn.functional.cross_entropy(model(x_N), y_N).item()
    assert losses == pytest.approx([expected, expected], rel=1e-6)
