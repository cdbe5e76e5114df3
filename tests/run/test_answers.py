"""Right answers are counted over labelled positions alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from saf_titan.run.answers import count_answers


def test_counts_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, 3, generator=generator)
    labels = torch.randint(3, (6, 5), generator=generator)
    labels[torch.rand(6, 5, generator=generator) < 0.5] = -100
    labels[0] = -100
    labels[1] = logits[1].argmax(-1)
    loss = right = asked = share = all_right = examples = 0.0
    for row in range(6):
        positions = [t for t in range(5) if labels[row, t] != -100]
        hits = [int(logits[row, t].argmax() == labels[row, t]) for t in positions]
        loss += sum(float(F.cross_entropy(logits[row, t], labels[row, t])) for t in positions)
        right, asked = right + sum(hits), asked + len(hits)
        if hits:
            share, examples, all_right = share + sum(hits) / len(hits), examples + 1, all_right + all(hits)
    expected = torch.tensor([loss, right, asked, share, all_right, examples], dtype=torch.float64)
    torch.testing.assert_close(count_answers(logits, labels), expected, rtol=1e-6, atol=0)
