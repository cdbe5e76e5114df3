"""Fine-tune a model for answers of one token, as in the published runs: the loss is that of the answer alone.

A tenth of the training examples of each answer is held out and chooses the epoch. The official validation data are
evaluated once, at the end. Static heads do not change: their patterns are not parameters, and their unused weights are
zero and get no gradient, so they stay zero under weight decay.

Legend: B texts, K positions, T time, V vocabulary, A answers.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from saf_titan.fields.places import require_new_folder
from saf_titan.hf.answer_tasks import AnswerTask, Example
from saf_titan.hf.model import load
from saf_titan.hf.text import longest_text, require_length
from saf_titan.hf.tokenizer_files import read_tokenizer
from saf_titan.ops.finite import require_finite

_DEV_SHARE = 10
"""One in this many examples of each answer is held out for the choice of the epoch."""


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of a fine-tuning. The defaults are the published values, except `epochs`: its value is not published."""

    learning_rate: float = 2e-5
    """Constant: without warm-up or decay."""
    weight_decay: float = 0.01
    """Weight decay of every parameter."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    batch_size: int = 16
    """Texts per optimizer step."""
    micro_batch: int = 16
    """Texts per forward; must divide the batch size."""
    epochs: int = 3
    """Number of passes over the training examples."""
    fixed: bool = False
    """Save the last epoch instead of the best one, for a comparison at the epoch that a baseline has chosen."""
    length: int | None = None
    """Longest text in tokens; None for the published length, or the longest text of the model if that is shorter."""
    seed: int = 1337

    def __post_init__(self) -> None:
        if self.batch_size % self.micro_batch:
            raise ValueError(
                f"a micro-batch of {self.micro_batch} does not divide the batch of {self.batch_size}: choose "
                "--micro-batch so that --batch-size is a multiple of it"
            )


@dataclass(frozen=True)
class Encoded:
    """A text as token ids, the index of its answer, and whether it is a hard question of QuALITY."""

    tokens: list[int]
    answer: int
    hard: bool


class AnswerTrainer(Trainer):
    """transformers' Trainer with the loss of the answer's token alone, and weight decay of every parameter.

    Texts are padded at their right end, where no token of the text attends to the padding. So no mask is needed, and
    one operator computes live and static heads.
    """

    def __init__(self, model: Any, arguments: TrainingArguments, answer_ids: Sequence[int], **kwargs: Any) -> None:
        super().__init__(model, arguments, data_collator=collate, **kwargs)
        self.answer_ids = torch.tensor(answer_ids)
        # the loss below is a mean over the micro-batch: with False, Trainer divides it by the number of micro-batches
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the mean cross-entropy of the answers over the vocabulary, in nats.

        With `return_outputs`, also return the logits of the task's answers, (B, A).

        Raises ValueError for a loss that is not finite.
        """
        answer_ids = self.answer_ids.to(inputs["labels"].device)
        kept_K, place_B = inputs["last"].unique(return_inverse=True)
        logits_BKV = model(input_ids=inputs["input_ids"], logits_to_keep=kept_K, use_cache=False).logits
        logits_BV = logits_BKV[torch.arange(len(place_B), device=place_B.device), place_B].float()
        loss = F.cross_entropy(logits_BV, answer_ids[inputs["labels"]])
        # Trainer would go on, and log the last finite loss in its place
        require_finite(loss, "the loss of the model")
        return (loss, {"logits": logits_BV[:, answer_ids]}) if return_outputs else loss

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Return the names of all parameters."""
        return [name for name, _ in model.named_parameters()]


class _Lines(TrainerCallback):
    """Print one line for each log of the trainer."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        logs = logs or {}
        step = f"step {state.global_step}/{state.max_steps}"
        if "loss" in logs:
            self.say(f"{step} | loss {logs['loss']:.4f} | grad {logs['grad_norm']:.3f}")
        elif "eval_dev_accuracy" in logs:
            self.say(f"{step} | dev loss {logs['eval_dev_loss']:.4f} | dev accuracy {logs['eval_dev_accuracy']:.4f}")


def collate(batch: Sequence[Encoded]) -> dict[str, Tensor]:
    """Return the token ids of texts (B, T), padded with zeros at the right; the index of each last token (B); and the
    answers (B)."""
    rows = [torch.tensor(text.tokens) for text in batch]
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "last": torch.tensor([len(row) - 1 for row in rows]),
        "labels": torch.tensor([text.answer for text in batch]),
    }


def answer_tokens(tokenizer: Any, answers: Sequence[str]) -> list[int]:
    """Return the token id of each answer after a colon. Raises ValueError if an answer is not one token of its own."""
    before = tokenizer("Answer:", add_special_tokens=False)["input_ids"]
    found = []
    for answer in answers:
        ids = tokenizer(f"Answer:{answer}", add_special_tokens=False)["input_ids"]
        if ids[:-1] != before or ids[-1] in found:
            raise ValueError(
                f"the tokenizer of {tokenizer.name_or_path} has no single token for the answer {answer!r}: give a "
                "model whose tokenizer has one"
            )
        found.append(ids[-1])
    return found


def encode(tokenizer: Any, example: Example, longest: int) -> tuple[Encoded, bool]:
    """Return a text as tokens, at most `longest`, and whether its passage was shortened, from the end, to fit.

    Raises ValueError if the question alone does not fit.
    """
    passage = example.passage
    while True:
        read = tokenizer(passage + example.question, return_offsets_mapping=True, verbose=False)
        excess = len(read["input_ids"]) - longest
        if excess <= 0:
            text = Encoded(read["input_ids"], example.answer, example.hard)
            return text, len(passage) < len(example.passage)
        ends = [end for start, end in read["offset_mapping"] if start < end <= len(passage)]
        if excess >= len(ends):
            rest = len(read["input_ids"]) - len(ends)
            raise ValueError(
                f"{example.place}: the question alone has {rest} tokens or more, and a text may have {longest}"
            )
        # several tokens may spell one character
        passage = passage[: min(ends[-1 - excess], len(passage) - 1)]


def split_dev(texts: Sequence[Encoded], seed: int) -> tuple[list[Encoded], list[Encoded]]:
    """Return training texts and held-out texts: a tenth of those of each answer, at least one, drawn with the seed.

    Raises ValueError if an answer has fewer than two texts.
    """
    dev: set[int] = set()
    for answer in sorted({text.answer for text in texts}):
        members = [n for n, text in enumerate(texts) if text.answer == answer]
        if len(members) < 2:
            raise ValueError(
                f"there is {len(members)} example of answer number {answer}: at least 2 are needed, one to train on "
                "and one to hold out"
            )
        # each answer has its own random numbers, so that its draw does not depend on the other answers
        dev.update(random.Random(f"{seed} {answer}").sample(members, max(1, round(len(members) / _DEV_SHARE))))
    return [text for n, text in enumerate(texts) if n not in dev], [texts[n] for n in sorted(dev)]


def finetune(
    folder: Path,
    task: AnswerTask,
    data: Path,
    out: Path,
    *,
    evaluation: Path | None = None,
    settings: FinetuneSettings = FinetuneSettings(),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Fine-tune the model of a folder, with or without static heads, and write it with its plan and tokenizer.

    Args:
        folder: the folder of the model.
        task: one of `TASKS`.
        data: the official training file.
        out: the new folder.
        evaluation: the official validation file; the model of the chosen epoch is evaluated on it once.
        settings: the settings of the training.
        say: called with each line of progress.

    Returns the contents of ``finetune.json`` in the new folder. Raises ValueError, before any training, for a file that
    cannot be read, and for settings or a tokenizer that do not fit the model or the task.
    """
    for folder_to_be in (out, _epochs(out)):
        require_new_folder(folder_to_be)
    tokenizer = read_tokenizer(folder)
    answer_ids = answer_tokens(tokenizer, task.answers)
    examples = {"data": task.read(data)} | ({} if evaluation is None else {"evaluation": task.read(evaluation)})
    model = load(folder, dtype=torch.float32)
    longest = _longest(model, task, settings)
    texts, num_cut = {}, {}
    for name, part in examples.items():
        encoded = [encode(tokenizer, example, longest) for example in part]
        texts[name], num_cut[name] = [text for text, _ in encoded], sum(cut for _, cut in encoded)
        say(f"{name}: {len(part):,} texts of up to {longest} tokens, {num_cut[name]:,} of them shortened to fit")
    try:
        train, dev = split_dev(texts["data"], settings.seed)
    except ValueError as error:
        raise ValueError(f"{data}: {error}") from error
    if model.plan is None:
        # the ordinary class saves a folder that can be loaded without this package
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    trainer = AnswerTrainer(
        model,
        _arguments(out, settings),
        answer_ids,
        train_dataset=train,
        eval_dataset={"dev": dev},
        compute_metrics=_accuracy,
        callbacks=[_Lines(say)],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        trainer.train()
    finally:
        shutil.rmtree(_epochs(out), ignore_errors=True)
    accuracies = [entry["eval_dev_accuracy"] for entry in trainer.state.log_history if "eval_dev_accuracy" in entry]
    record: dict[str, Any] = {
        "model": str(folder),
        "data": str(data),
        "settings": asdict(settings),
        "length": longest,
        "num_train": len(train),
        "num_dev": len(dev),
        "num_shortened": num_cut,
        "dev_accuracy": accuracies,
        "epoch": settings.epochs if settings.fixed else 1 + int(np.argmax(accuracies)),
    }
    if evaluation is not None:
        record |= {"evaluation": str(evaluation), **_evaluate(trainer, texts["evaluation"])}
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "finetune.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def _longest(model: Any, task: AnswerTask, settings: FinetuneSettings) -> int:
    if settings.length is None:
        return min(task.length, longest_text(model) or task.length)
    require_length(model, settings.length, remedy="lower the length")
    return settings.length


def _epochs(out: Path) -> Path:
    """Return the folder of the checkpoints of all epochs, which is removed behind the last one."""
    return out.with_name(f"{out.name}.epochs")


def _arguments(out: Path, settings: FinetuneSettings) -> TrainingArguments:
    on_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        str(_epochs(out)),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.micro_batch,
        per_device_eval_batch_size=settings.micro_batch,
        gradient_accumulation_steps=settings.batch_size // settings.micro_batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        optim="adamw_torch",
        bf16=on_gpu,
        seed=settings.seed,
        eval_strategy="epoch",
        save_strategy="no" if settings.fixed else "epoch",
        load_best_model_at_end=not settings.fixed,
        metric_for_best_model="dev_accuracy",
        greater_is_better=True,
        save_total_limit=1,
        save_only_model=True,
        logging_steps=50,
        logging_first_step=True,
        report_to=[],
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=not on_gpu,
        dataloader_pin_memory=on_gpu,
    )
    # with several GPUs in one process, DataParallel would split the positions of answers as if they were texts
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def _evaluate(trainer: AnswerTrainer, texts: list[Encoded]) -> dict[str, Any]:
    """Return the accuracy on the official validation data and, for QuALITY, on its hard questions."""
    prediction = trainer.predict(texts)
    right = prediction.predictions.argmax(1) == prediction.label_ids
    hard = np.array([text.hard for text in texts])
    found = {"num_evaluation": len(texts), "accuracy": float(right.mean())}
    return found | ({"accuracy_hard": float(right[hard].mean())} if hard.any() else {})
