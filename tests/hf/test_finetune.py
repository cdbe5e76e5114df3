"""Fine-tuning for one-token answers: the loss and the update by definition, what stays static, and the command."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainingArguments

import saf_titan.hf
from saf_titan.hf import finetune as module
from saf_titan.hf.__main__ import main
from saf_titan.hf.answer_tasks import TASKS, Example
from saf_titan.hf.finetune import AnswerTrainer, Encoded, answer_tokens, collate, encode, split_dev
from saf_titan.hf.measure import calibrate_model
from saf_titan.hf.tokenizer_files import gpt2_tokenizer, read_tokenizer
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings
from tests.hf.test_answer_tasks import BOOLQ, quality_row, write_rows
from tests.hf.test_commands import write_model
from tests.hf.tiny import our_model, stock_model, tokens

T_FIT = 48
VOCAB = {"vocab_size": 50257}
GOOD, BAD = ("a lovely film", "funny and warm", "great fun"), ("a dull mess", "bland and slow", "no fun at all")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=gpt2_tokenizer(), bos_token="<|endoftext|>")


def frozen_model(model_type: str, **changes: Any) -> Any:
    model = our_model(model_type, **VOCAB | changes)
    settings = PlanSettings(rate=0.5, max_fit_kl=100.0, selector="random", seed=3)
    model.set_plan(make_plan(calibrate_model(model, tokens(6, T_FIT)), settings))
    model.zero_unused_weights()
    return model


def write_sst2(path: Path, repeats: int) -> Path:
    rows = [(text, label) for label, texts in ((1, GOOD), (0, BAD)) for text in texts]
    lines = [f"{text} , number {n} \t{label}\n" for n in range(repeats) for text, label in rows]
    path.write_text("sentence\tlabel\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A frozen model, an ordinary one, and data of SST-2."""
    folder = tmp_path_factory.mktemp("made")
    frozen_model("llama").save_pretrained(folder / "frozen")
    stock_model("gpt_neox", **VOCAB).save_pretrained(folder / "stock")
    for name in ("frozen", "stock"):
        tokenizer.save_pretrained(folder / name)
    write_sst2(folder / "train.tsv", 10)
    write_sst2(folder / "dev.tsv", 3)
    return folder


def losses_alone(model: Any, texts: list[Encoded], answer_ids: list[int]) -> Tensor:
    """The loss of each answer by definition: every text alone, all its logits, no padding."""
    found = []
    for text in texts:
        logits_TV = model(torch.tensor([text.tokens])).logits[0].double()
        found.append(-logits_TV[-1].log_softmax(-1)[answer_ids[text.answer]])
    return torch.stack(found)


def ragged(tokenizer: Any) -> list[Encoded]:
    passages = ["short", "a text of some more words", "and one that is a good deal longer than the others are", "b c"]
    examples = [Example(passage, "\nSentiment:", n % 2, f"line {n}") for n, passage in enumerate(passages)]
    return [encode(tokenizer, example, T_FIT)[0] for example in examples]


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "gemma2"])
def test_the_loss_is_that_of_the_answers_alone(model_type: str, tokenizer: Any, tmp_path: Path) -> None:
    model, texts = frozen_model(model_type), ragged(tokenizer)
    ids = answer_tokens(tokenizer, TASKS["sst2"].answers)
    assert [tokenizer.decode(each) for each in ids] == [" negative", " positive"]
    trainer = AnswerTrainer(model, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True), ids)
    loss, scores = trainer.compute_loss(model, collate(texts), return_outputs=True)
    expected = losses_alone(model, texts, ids)
    torch.testing.assert_close(loss.double(), expected.mean(), rtol=1e-5, atol=1e-5)
    # the difference of the scores is the log of the odds of the answers
    other = [Encoded(text.tokens, 1 - text.answer, False) for text in texts]
    odds = losses_alone(model, other, ids) - expected
    signs = torch.tensor([1.0 if text.answer else -1.0 for text in texts])
    torch.testing.assert_close(
        (scores["logits"][:, 1] - scores["logits"][:, 0]).double() * signs, odds, atol=1e-5, rtol=0
    )


def test_one_update_is_adamw_on_every_parameter(
    made: Path, tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Constant learning rate, decay of biases and norms as well, clipping at 1, micro-batches that do not show."""
    words = ["--task", "sst2", "--data", str(made / "train.tsv"), "--fixed-epochs", "1", "--learning-rate", "3e-3"]
    sizes = ["--batch-size", "54", "--micro-batch", "18", "--seed", "5"]
    assert main(["finetune", str(made / "frozen"), *words, *sizes, "--out", str(tmp_path / "out")]) == 0
    ids = answer_tokens(tokenizer, TASKS["sst2"].answers)
    texts = [encode(tokenizer, example, 128)[0] for example in TASKS["sst2"].read(made / "train.tsv")]
    train, dev = split_dev(texts, 5)
    assert (len(train), len(dev)) == (54, 6)
    model = saf_titan.hf.load(made / "frozen")
    loss = losses_alone(model, train, ids).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm > 1
    assert f"step 1/1 | loss {loss.item():.4f} | grad {norm.item():.3f}\n" in capsys.readouterr().err
    torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01).step()
    tuned = saf_titan.hf.load(tmp_path / "out").state_dict()
    before = saf_titan.hf.load(made / "frozen").state_dict()
    for name, weight in model.state_dict().items():
        # the first step of Adam is the sign of the gradient: rounding decides where it is almost zero
        close = torch.isclose(tuned[name], weight, rtol=1e-6, atol=5e-6).float().mean()
        assert close > 0.999, name
        assert not torch.equal(tuned[name], before[name]), name


def test_the_command_learns_and_heads_stay_static(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizer: Any
) -> None:
    words = ["--task", "sst2", "--data", str(made / "train.tsv"), "--eval", str(made / "dev.tsv"), "--epochs", "3"]
    out = tmp_path / "out"
    assert main(["finetune", str(made / "frozen"), *words, "--learning-rate", "2e-2", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    record = json.loads((out / "finetune.json").read_text())
    assert record["accuracy"] == 1.0
    assert (record["num_train"], record["num_dev"]) == (54, 6)
    assert len(record["dev_accuracy"]) == 3
    assert record["epoch"] == 1 + int(np.argmax(record["dev_accuracy"]))
    assert f"epoch {record['epoch']}: dev accuracy 1.0000" in captured.out
    assert "dev.tsv: accuracy 1.0000, 18 questions" in captured.out
    assert "step 12/12 | dev loss" in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    tuned, before = saf_titan.hf.load(out), saf_titan.hf.load(made / "frozen")
    assert tuned.plan.to_bytes() == before.plan.to_bytes()
    assert len(tuned.plan.heads) == 4
    for layer in tuned.attentions:
        for head in range(layer.num_heads):
            rows = layer.layout.rows("q", head)[0]
            assert rows.any() != (head in layer.static_heads)
    # the answers of the saved model, each text alone
    ids = answer_tokens(tokenizer, TASKS["sst2"].answers)
    for example in TASKS["sst2"].read(made / "dev.tsv")[:6]:
        text = torch.tensor([read_tokenizer(out)(example.passage + example.question)["input_ids"]])
        assert tuned(text).logits[0, -1, ids].argmax() == example.answer


def test_the_best_epoch_is_the_one_that_is_saved(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["finetune", str(made / "frozen"), "--task", "sst2", "--data", str(made / "dev.tsv")]
    weights = {}
    for name, epochs in [("best", "--epochs"), ("two", "--fixed-epochs"), ("three", "--fixed-epochs")]:
        # two epochs are equally good, and the first of them is taken
        accuracies = iter([0.25, 0.75, 0.75])
        monkeypatch.setattr(module, "_accuracy", lambda _, of=accuracies: {"accuracy": next(of)})
        out = tmp_path / name
        assert main([*words, epochs, "2" if name == "two" else "3", "--out", str(out)]) == 0
        weights[name] = saf_titan.hf.load(out).state_dict()
    chosen = json.loads((tmp_path / "best/finetune.json").read_text())
    assert (chosen["epoch"], chosen["dev_accuracy"]) == (2, [0.25, 0.75, 0.75])
    assert all(torch.equal(weight, weights["two"][name]) for name, weight in weights["best"].items())
    assert not all(torch.equal(weight, weights["three"][name]) for name, weight in weights["best"].items())


def test_an_ordinary_model_stays_ordinary(made: Path, tmp_path: Path) -> None:
    words = ["--task", "sst2", "--data", str(made / "dev.tsv"), "--fixed-epochs", "1"]
    assert main(["finetune", str(made / "stock"), *words, "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "gpt_neox"
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "out")).__name__ == "GPTNeoXForCausalLM"


@pytest.mark.parametrize("task", ["boolq", "quality"])
def test_the_other_tasks(task: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A long passage is shortened to what the patterns reach, and hard questions are counted on their own."""
    if task == "boolq":
        rows: list[Any] = [row | {"passage": row["passage"] * 20} for row in BOOLQ * 4]
    else:
        rows = [quality_row(article="One word after the other. " * 50) for _ in range(4)]
    data = str(write_rows(tmp_path / "data", rows))
    words = ["--task", task, "--data", data, "--eval", data, "--fixed-epochs", "1"]
    assert main(["finetune", str(made / "frozen"), *words, "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out/finetune.json").read_text())
    assert record["length"] == T_FIT
    assert record["num_shortened"] == {"data": 8, "evaluation": 8}
    assert ("accuracy_hard" in record) == (task == "quality")
    assert "8 texts of up to 48 tokens, 8 of them shortened to fit" in capsys.readouterr().err


@pytest.mark.parametrize("character", ["words and ", "\U0001f600", "\u00e9\u6771 "])
def test_only_the_passage_is_shortened(character: str, tokenizer: Any) -> None:
    example = Example(character * 40, "\nQuestion: is it?\nAnswer:", 1, "file: line 3")
    whole = tokenizer(example.passage + example.question)["input_ids"]
    for longest in (len(whole), len(whole) - 1, 23, 12):
        text, cut = encode(tokenizer, example, longest)
        assert len(text.tokens) <= longest
        assert cut == (longest < len(whole))
        # not shorter than it must be: a character has at most four tokens here
        assert len(text.tokens) > longest - 4
        words = tokenizer.decode(text.tokens)
        assert words.endswith(example.question)
        assert example.passage.startswith(words.removesuffix(example.question))
    with pytest.raises(ValueError, match=r"file: line 3: the question alone has .* and a text may have 6"):
        encode(tokenizer, example, 6)


def test_a_tenth_of_each_answer_chooses_the_epoch() -> None:
    texts = [Encoded([n], int(n % 5 == 0), False) for n in range(100)]
    random.Random(0).shuffle(texts)
    train, dev = split_dev(texts, 1)
    assert sorted(text.tokens[0] for text in train + dev) == list(range(100))
    assert [sum(text.answer == answer for text in dev) for answer in (0, 1)] == [8, 2]
    assert split_dev(texts, 1) == (train, dev)
    assert split_dev(texts, 2)[1] != dev
    with pytest.raises(ValueError, match="1 example of answer number 1: at least 2"):
        split_dev([Encoded([0], 0, False)] * 5 + [Encoded([1], 1, False)], 0)


def test_mistakes_are_one_line(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = write_model(tmp_path / "letters")
    capsys.readouterr()
    (tmp_path / "bad.tsv").write_text("sentence\tlabel\nfine\t1\nwhat\n")
    (tmp_path / "one.tsv").write_text("sentence\tlabel\nfine\t1\n")
    start = f"finetune {made}/frozen --task sst2 --data"
    for words, message in [
        (f"finetune {made}/none --task sst2 --data {made}/train.tsv", "none does not exist: give the folder"),
        (
            f"finetune {letters} --task sst2 --data {made}/train.tsv",
            f"{letters} has no single token for the answer ' neg",
        ),
        (f"finetune {made}/frozen --task sst3 --data {made}/train.tsv", "invalid choice: 'sst3'"),
        (f"{start} {tmp_path}/none.tsv", "none.tsv"),
        (f"{start} {tmp_path}/bad.tsv", f"{tmp_path}/bad.tsv: line 3 is 'what'"),
        (
            f"{start} {tmp_path}/one.tsv",
            f"{tmp_path}/one.tsv: there is 1 example of answer number 1: at least 2 are needed",
        ),
        (f"{start} {made}/train.tsv --eval {tmp_path}/bad.tsv", "bad.tsv: line 3"),
        (
            f"{start} {made}/train.tsv --length 49",
            "49 tokens are more than the model is defined for: its static heads are fitted to sequences of 48 tokens",
        ),
        (f"{start} {made}/train.tsv --length 4", "train.tsv: line 2: the question alone has"),
        (f"{start} {made}/train.tsv --micro-batch 5", "a micro-batch of 5 does not divide the batch of 16"),
        (f"{start} {made}/train.tsv --epochs 2 --fixed-epochs 1", "not allowed with argument --epochs"),
        (f"{start} {made}/train.tsv --learning-rate 0", "above 0"),
    ]:
        assert main([*words.split(), "--out", str(tmp_path / "x")]) == 2, words
        lines = [line for line in capsys.readouterr().err.splitlines() if "texts of up to" not in line]
        assert message in lines[0]
        assert len(lines) == 1, lines
        assert not (tmp_path / "x").exists()
    assert main([*f"{start} {made}/train.tsv --out {made}/stock".split()]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_folder_of_somebody_else_is_not_taken_for_the_epochs(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The epochs are kept in a folder beside the new one, which is removed at the end."""
    kept = tmp_path / "out.epochs"
    kept.mkdir()
    words = ["finetune", str(made / "frozen"), "--task", "sst2", "--data", str(made / "dev.tsv")]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert f"{kept} exists already; choose another folder or remove it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [kept]


def test_a_training_that_fails_leaves_nothing(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a model, nor the epochs before; a loss that is not finite is no epoch of 50 % accuracy."""
    folder = shutil.copytree(made / "frozen", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    words = ["--task", "sst2", "--data", str(made / "dev.tsv"), "--out", str(tmp_path / "out")]
    assert main(["finetune", str(folder), *words]) == 2
    assert "the loss of the model is not finite: its weights hold NaN" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [folder]

    def stop(*_: Any, **__: Any) -> None:
        assert list((tmp_path / "out.epochs").iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Lines, "on_save", stop)
    assert main(["finetune", str(made / "frozen"), *words]) == 130
    assert list(tmp_path.iterdir()) == [folder]
