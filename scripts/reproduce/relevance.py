"""Train a small decoder on a task with word-level relevance at several QK ratios, and print a table.

    python scripts/reproduce/relevance.py --task agreement --qk-ratio 1 10 100 --seeds 3
    python scripts/reproduce/relevance.py --task sva|squad|hatexplain|eraser --data FILE --qk-ratio 1 10 100 --seeds 3

The decoder reads words and predicts the label after the last one. The learning rate of wq and wk is the ratio times
that of the other matrices. The columns of the table are means and standard deviations over seeds, on held-out examples:

    accuracy, NLL    of the label among all labels
    mass             attention from the last word to the relevant words, averaged over the heads of the last layer
    AC               share of examples whose mass is at least 0.5
    ACMC             share of examples whose mass and whose probability of the right label are at least 0.5
    AC+1             AC with the word after each relevant word counted too, because a lower layer can move a word there
    peak             the largest attention to any one word
    suff., compr.    ERASER's sufficiency (low is good) and comprehensiveness (high is good) of the relevant words
    AOPC s., c.      the same for the words of highest attention, averaged over 1, 5, 10, 20, 50 % of the words

A run ends when the mean training loss of the last 20 batches is below --stop-loss, so that ratios are compared at an
equal loss, or after --steps.

All ratios of a seed start from the same weights and read the same batches. So a second table gives paired differences:
the value at a ratio minus that at the first ratio (mean and standard error over seeds), and the number of seeds in
which the difference is above 0.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from saf_titan import compat  # noqa: F401  # isort: skip

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from saf_titan.analysis.faithfulness import aopc, faithfulness
from saf_titan.analysis.patterns import attention_from
from saf_titan.analysis.relevance import attention_and_model_confidence, attention_confidence, relevant_mass
from saf_titan.analysis.removal import label_predictor
from saf_titan.analysis.tasks import readers as tasks
from saf_titan.analysis.tasks.agreement import agreement
from saf_titan.analysis.tasks.example import Example
from saf_titan.circuits.optimizer import CircuitOptimizers, CircuitSchedules
from saf_titan.config import ModelShape
from saf_titan.config.circuit_groups import CircuitGroup
from saf_titan.config.own_sections import ModelSection
from saf_titan.models import model_spec
from saf_titan.models.gpt import GPT

READERS = tuple(tasks.READERS)
COLUMNS = ("accuracy", "NLL", "mass", "AC", "ACMC", "AC+1", "peak", "suff.", "compr.", "AOPC s.", "AOPC c.", "steps")


@dataclass(frozen=True)
class Encoded:
    """B examples of T words as tensors; shorter ones are padded at the right, which causal attention does not see."""

    tokens_BT: Tensor
    rows_B: Tensor
    """The position of the last word of each example."""
    relevant_BT: Tensor
    label_B: Tensor
    """The label of each example, as an index into `Vocabulary.labels`."""

    def __getitem__(self, index: Tensor) -> Encoded:
        return Encoded(self.tokens_BT[index], self.rows_B[index], self.relevant_BT[index], self.label_B[index])


class Vocabulary:
    """The labels, then the words of the training examples; any other word becomes <unk>."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.labels = sorted({example.label for example in examples})
        seen = dict.fromkeys(word for example in examples for word in example.words)
        names = [*(f"label {label}" for label in self.labels), "<pad>", "<unk>", *seen]
        self.index = {name: index for index, name in enumerate(names)}

    def encode(self, examples: Sequence[Example]) -> Encoded:
        T = max(len(example.words) for example in examples)
        unknown, pad = self.index["<unk>"], self.index["<pad>"]
        tokens, relevant = [], []
        for example in examples:
            padding = T - len(example.words)
            tokens.append([self.index.get(word, unknown) for word in example.words] + [pad] * padding)
            relevant.append([*example.relevant, *([False] * padding)])
        label = {name: index for index, name in enumerate(self.labels)}
        return Encoded(
            torch.tensor(tokens),
            torch.tensor([len(example.words) - 1 for example in examples]),
            torch.tensor(relevant),
            torch.tensor([label[example.label] for example in examples]),
        )


def train(vocabulary: Vocabulary, data: Encoded, ratio: float, seed: int, args: argparse.Namespace) -> tuple[GPT, int]:
    """Return a decoder trained at one ratio, and the number of steps."""
    torch.manual_seed(seed)
    width = args.width
    shape = ModelShape(
        num_layers=args.layers,
        num_heads=args.heads,
        num_kv_heads=args.heads,
        head_dim=width // args.heads,
        dim=width,
        vocab_size=len(vocabulary.index),
        tied=True,
    )
    model = model_spec(ModelSection(), shape, max_seq_len=args.max_words).model.build()
    model.init_states()
    specific = {"betas": (0.9, 0.95), "eps": 1e-8} if args.optimizer == "AdamW" else {"momentum": 0.9}
    optimizers = CircuitOptimizers.Config(
        name=args.optimizer,
        hyper_parameters={"lr": args.lr, "weight_decay": args.weight_decay, **specific},
        rules=(CircuitGroup(match="qk", factor=ratio),),
        implementation="foreach",
    ).build(model_parts=[model])
    schedules = CircuitSchedules.Config(warmup_steps=args.warmup, decay_type=args.decay).build(
        optimizers=optimizers, training_steps=args.steps
    )
    generator = torch.Generator().manual_seed(seed)
    labels = list(range(len(vocabulary.labels)))
    losses: list[float] = []
    for step in range(1, args.steps + 1):
        batch = data[torch.randint(len(data.label_B), (args.batch,), generator=generator)]
        longest = int(batch.rows_B.max()) + 1
        logits_BTV = model(batch.tokens_BT[:, :longest])
        logits_BK = logits_BTV[torch.arange(args.batch), batch.rows_B][:, labels]
        loss = F.cross_entropy(logits_BK, batch.label_B)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step()
        optimizers.zero_grad()
        schedules.step()
        losses.append(loss.item())
        if args.stop_loss and step >= 20 and np.mean(losses[-20:]) <= args.stop_loss:
            break
    return model.eval(), step


def measure(model: GPT, vocabulary: Vocabulary, data: Encoded) -> dict[str, float]:
    """Return the columns of the table; those about attention are measured on examples with known relevance only."""
    attentions = [layer.attention for layer in model.layers.values()]
    labels = list(range(len(vocabulary.labels)))
    predict = label_predictor(model, data.tokens_BT, data.rows_B, labels=labels)
    p_BK = predict(torch.zeros_like(data.relevant_BT))
    right_B = p_BK.gather(1, data.label_B[:, None])[:, 0]
    found = {
        "accuracy": (p_BK.argmax(1) == data.label_B).double().mean().item(),
        "NLL": -right_B.log().mean().item(),
    }
    known = data.relevant_BT.any(1)
    marked, right = data[known], right_B[known].numpy()
    rows_BLHT = torch.cat(
        [attention_from(attentions, model, part.tokens_BT, part.rows_B) for part in chunks(marked, 64)]
    )
    attention_BT = rows_BLHT[:, -1].mean(1)
    mass = relevant_mass(attention_BT.numpy(), marked.relevant_BT.numpy())
    found |= {
        "mass": float(mass.mean()),
        "AC": attention_confidence(mass),
        "ACMC": attention_and_model_confidence(mass, right.clip(0, 1)),
        "AC+1": attention_confidence(relevant_mass(attention_BT.numpy(), next_word_too(marked.relevant_BT).numpy())),
        "peak": attention_BT.max(1).values.mean().item(),
    }
    predict = label_predictor(model, marked.tokens_BT, marked.rows_B, labels=labels)
    candidates_BT = torch.arange(marked.tokens_BT.shape[1]) < marked.rows_B[:, None]
    given = faithfulness(predict, marked.relevant_BT, candidates_BT)
    by_attention = aopc(predict, attention_BT, candidates_BT)
    return found | {
        "suff.": given.sufficiency_B.mean().item(),
        "compr.": given.comprehensiveness_B.mean().item(),
        "AOPC s.": by_attention.sufficiency_B.mean().item(),
        "AOPC c.": by_attention.comprehensiveness_B.mean().item(),
    }


def next_word_too(relevant_BT: Tensor) -> Tensor:
    """Return a mask of the relevant words and the word after each."""
    moved_BT = relevant_BT.roll(1, 1)
    moved_BT[:, 0] = False
    return relevant_BT | moved_BT


def chunks(data: Encoded, size: int) -> list[Encoded]:
    return [data[torch.arange(i, min(i + size, len(data.rows_B)))] for i in range(0, len(data.rows_B), size)]


def load(args: argparse.Namespace) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples; every tenth example of a file is held out."""
    if args.task == "agreement":
        if args.data is not None:
            raise SystemExit("--data: --task agreement generates its examples and reads no file; leave --data out")
        return agreement(args.examples, seed=0), agreement(args.test_examples, seed=1)
    if args.data is None:
        raise SystemExit(f"--data: --task {args.task} reads a published file; give its path")
    readers = tasks.READERS

    try:
        examples = [example for example in readers[args.task](args.data) if len(example.words) <= args.max_words]
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from None
    held_out = examples[9::10][: args.test_examples]
    training = [example for index, example in enumerate(examples) if index % 10 != 9][: args.examples]
    if not held_out:
        raise SystemExit(
            f"{args.data}: holds {len(examples)} examples of at most {args.max_words} words; 10 are needed"
        )
    labels = {example.label for example in training}
    return training, [example for example in held_out if example.label in labels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("agreement", *READERS), required=True)
    parser.add_argument("--data", type=Path, help="file of the task; none for agreement")
    parser.add_argument("--qk-ratio", type=float, nargs="+", default=[1.0, 10.0, 100.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1200, help="at most so many steps")
    parser.add_argument("--stop-loss", type=float, default=0.02, help="stop at this loss; 0: take all steps")
    parser.add_argument("--optimizer", choices=("AdamW", "SGD"), default="AdamW")
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", choices=("cosine", "linear"), default="cosine")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--examples", type=int, default=20_000, help="training examples at most")
    parser.add_argument("--test-examples", type=int, default=500)
    parser.add_argument("--max-words", type=int, default=256, help="longer examples are left out")
    args = parser.parse_args()
    if len(set(args.qk_ratio)) < len(args.qk_ratio):
        parser.error("--qk-ratio: the same ratio is given twice")
    if not all(0 < ratio < math.inf for ratio in args.qk_ratio):
        parser.error("--qk-ratio: each must be positive and finite")
    if args.seeds < 1:
        parser.error(f"--seeds {args.seeds}: must be at least 1")
    training, held_out = load(args)
    vocabulary = Vocabulary(training)
    data, test = vocabulary.encode(training), vocabulary.encode(held_out)
    print(f"{len(training)} training and {len(held_out)} held-out examples, {len(vocabulary.index)} words", flush=True)
    found: dict[float, list[dict[str, float]]] = {ratio: [] for ratio in args.qk_ratio}
    for seed in range(args.seeds):
        for ratio in args.qk_ratio:
            start = time.perf_counter()
            model, steps = train(vocabulary, data, ratio, seed, args)
            values = {**measure(model, vocabulary, test), "steps": steps}
            found[ratio].append(values)
            print(
                f"seed {seed}, ratio {ratio:g}: AC {values['AC']:.3f}, {steps} steps "
                f"({time.perf_counter() - start:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    print("\n".join(table(found)))
    if args.seeds > 1 and len(found) > 1:
        print("\n" + "\n".join(paired_table(found)))


def table(found: dict[float, list[dict[str, float]]]) -> list[str]:
    """Return the lines of a table of means and standard deviations over seeds, with a row for each ratio."""

    def cell(name: str, seeds: list[dict[str, float]]) -> str:
        values, digits = [seed[name] for seed in seeds], 0 if name == "steps" else 3
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return f"{np.mean(values):.{digits}f} ± {deviation:.{digits}f}"

    rows = [f"| {ratio:g} | {' | '.join(cell(name, seeds) for name in COLUMNS)} |" for ratio, seeds in found.items()]
    return ["| QK ratio | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (len(COLUMNS) + 1), *rows]


def paired_table(found: dict[float, list[dict[str, float]]]) -> list[str]:
    """Return the lines of a table of differences to the first ratio: mean, standard error, seeds with one above 0."""
    first, *others = found

    def cell(name: str, ratio: float) -> str:
        pairs = zip(found[ratio], found[first], strict=True)
        differences, digits = np.array([seed[name] - base[name] for seed, base in pairs]), 0 if name == "steps" else 3
        error = float(differences.std(ddof=1)) / len(differences) ** 0.5
        return f"{differences.mean():+.{digits}f} ± {error:.{digits}f} ({(differences > 0).sum()}/{len(differences)})"

    rows = [f"| {ratio:g} - {first:g} | {' | '.join(cell(name, ratio) for name in COLUMNS)} |" for ratio in others]
    return ["| paired by seed | " + " | ".join(COLUMNS) + " |", "|" + "---|" * (len(COLUMNS) + 1), *rows]


if __name__ == "__main__":
    main()
