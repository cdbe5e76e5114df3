"""The evaluation harness on models with static heads: its figures against those of texts alone, and refusals."""

import json
import math
import socket
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

import saf_titan.hf
from rust_data import Tokenizer
from saf_titan.hf import evaluation
from saf_titan.hf.__main__ import main
from saf_titan.hf.tokenizer_files import read_tokenizer
from tests.data.corpus import TOKENIZER_SHA256, write_corpus
from tests.hf.test_commands import write_model
from tests.hf.test_export import GPT, Made
from tests.hf.test_use import frozen_model
from tests.hf.tiny import T

CHOICES = [
    {"question": "the quick", "choices": ["brown", "red fox"], "label": 0},
    {"question": "a", "choices": ["lazy dog", "cat, a", "b"], "label": 2},
    {"question": "jumps over", "choices": ["it", "them"], "label": 1},
    {"question": "why does a fox", "choices": ["jump", "bark. no"], "label": 0},
]
PROMPTS = ["the", "quick br", "lazy do", "a b c d e"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> NoReturn:
        raise AssertionError(f"the network was asked: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_device_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gpuu", "cuda:9"):
        assert main(["evaluate", "model", "--tasks", "none", "--device", name]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: --device {name}: there is no such device here (")
        assert error.count("\n") == 1


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    write_model(folder / "stock")
    frozen_model("llama").save_pretrained(folder)
    read_tokenizer(folder / "stock").save_pretrained(folder)
    return folder


def write_task(folder: Path, name: str, examples: list[Any], **settings: Any) -> Path:
    """A task of the harness, defined in a YAML file (of which JSON is a part), with its data beside it."""
    data, file = folder / f"{name}.jsonl", folder / f"{name}.yaml"
    data.write_text("".join(json.dumps(example) + "\n" for example in examples))
    source = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": source, "test_split": "test"} | settings
    file.write_text(json.dumps(task))
    return file


def choice_task(folder: Path, examples: list[Any], **settings: Any) -> Path:
    texts = {"doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{label}}"}
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
    settings = {"output_type": "multiple_choice", "metric_list": metrics} | texts | settings
    return write_task(folder, "choose", examples, **settings)


def run(words: list[str], out: Path) -> dict[str, Any]:
    assert main(["evaluate", *words, "--out", str(out)]) == 0
    results: dict[str, Any] = json.loads(out.read_text())
    return results


@torch.no_grad()
def answer_loss(folder: Path, prompt: str, answer: str) -> float:
    """Minus the log-probability of an answer, by definition, one text at a time."""
    model, tokenizer = saf_titan.hf.load(folder), read_tokenizer(folder)
    ids = torch.tensor([tokenizer(f"{prompt} {answer}")["input_ids"]])
    log_p_TV = model(ids).logits[0].double().log_softmax(-1)
    start = len(tokenizer(prompt)["input_ids"])
    return -sum(log_p_TV[t - 1, ids[0, t]].item() for t in range(start, ids.shape[1]))


def test_choices_are_scored_as_texts_alone_are(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts of different lengths share a batch."""
    task = choice_task(tmp_path, CHOICES)
    results = run([str(frozen), "--tasks", str(task), "--batch-size", "3"], tmp_path / "out.json")
    right = normed = 0
    for example in CHOICES:
        losses = [answer_loss(frozen, example["question"], choice) for choice in example["choices"]]
        right += np.argmin(losses) == example["label"]
        per_letter = [loss / len(choice) for loss, choice in zip(losses, example["choices"], strict=True)]
        normed += np.argmin(per_letter) == example["label"]
    assert results["results"]["choose"]["acc,none"] == right / 4
    assert results["results"]["choose"]["acc_norm,none"] == normed / 4
    out = capsys.readouterr().out
    assert "|choose|" in out
    assert "lost their beginning" not in out
    plan = saf_titan.hf.load(frozen).plan
    assert results["config"]["saf_plan"] == plan.digest
    assert results["config"]["static_heads"] == [head.name for head in plan.heads]
    assert results["config"]["max_length"] == T


def test_generated_answers_are_those_of_prompts_alone(frozen: Path, tmp_path: Path) -> None:
    """Prompts of different lengths share a batch, padded at the left."""
    model, tokenizer = saf_titan.hf.load(frozen), read_tokenizer(frozen)
    examples = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        written = model.generate(**ids, max_new_tokens=6, do_sample=False)[0, ids["input_ids"].shape[1] :]
        examples.append({"prompt": prompt, "answer": tokenizer.decode(written, skip_special_tokens=True)})
    examples.append({"prompt": "fox", "answer": "none of this"})
    settings = {"doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}", "output_type": "generate_until"}
    settings |= {"generation_kwargs": {"max_gen_toks": 6, "until": ["\n\n"]}}
    metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    task = write_task(tmp_path, "write", examples, **settings, metric_list=[metric])
    results = run([str(frozen), "--tasks", str(task), "--batch-size", "5"], tmp_path / "out.json")
    assert results["results"]["write"]["exact_match,none"] == 4 / 5


def test_a_document_longer_than_the_patterns_is_read_in_windows(frozen: Path, tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog. again"[: 2 * T]
    settings = {"doc_to_text": "", "doc_to_target": "{{text}}", "output_type": "loglikelihood_rolling"}
    metric = {"metric": "byte_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}
    task = write_task(tmp_path, "read", [{"text": text}], **settings, metric_list=[metric])
    results = run([str(frozen), "--tasks", str(task)], tmp_path / "out.json")
    model, tokenizer = saf_titan.hf.load(frozen), read_tokenizer(frozen)
    ids = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
    assert len(ids) == 2 * T + 1
    loss = 0.0
    for start in (0, T):
        window = torch.tensor(ids[start : start + T + 1])
        with torch.no_grad():
            log_p_TV = model(window[None, :-1]).logits[0].double().log_softmax(-1)
        loss -= log_p_TV.gather(1, window[1:, None]).sum().item()
    found = results["results"]["read"]["byte_perplexity,none"]
    assert found == pytest.approx(math.exp(loss / len(text)), rel=1e-5)


def test_prompts_that_are_cut_are_counted(frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 20 letters, a space and 4: the last letter is not read
    examples = [{"question": "x" * length, "choices": ["abcd", "efgh"], "label": 0} for length in (20, 21, 40)]
    results = run([str(frozen), "--tasks", str(choice_task(tmp_path, examples))], tmp_path / "out.json")
    assert "4 prompts lost their beginning: the longest text of this model has 24 tokens" in capsys.readouterr().out
    assert results["config"]["num_cut"] == 4


def test_a_checkpoint_by_way_of_its_export(tmp_path: Path) -> None:
    made = Made(tmp_path, GPT.replace("256", "50304"), "mean")
    (tmp_path / "corpus").mkdir()
    ids = np.arange(300)
    write_corpus(tmp_path / "corpus", train=ids, val=ids, vocab_size=50257, eot=50256, tokenizer="gpt2")
    manifest = tmp_path / "corpus/manifest.json"
    manifest.write_text(manifest.read_text().replace(TOKENIZER_SHA256, Tokenizer("gpt2").sha256))
    model = tmp_path / "model"
    assert main(["export", str(made.checkpoint), "--out", str(model)]) == 0
    tasks = [str(choice_task(tmp_path, CHOICES)), "--limit", "2", "--num-fewshot", "0"]
    results = run([str(model), "--tasks", *tasks], tmp_path / "out.json")
    right = 0
    for example in CHOICES[:2]:
        losses = [answer_loss(model, example["question"], choice) for choice in example["choices"]]
        right += np.argmin(losses) == example["label"]
    assert results["results"]["choose"]["acc,none"] == right / 2
    assert results["n-samples"]["choose"] == {"original": 4, "effective": 2}
    assert results["config"]["saf_plan"] == made.plan.digest


def test_mistakes_are_one_line(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named"
    named.mkdir()
    write_task(named, "arithmetic", [{"text": "x"}], output_type="loglikelihood_rolling")
    # in place of the thousands of tasks that the harness brings along
    small = partial(evaluation.TaskManager, include_path=named)
    monkeypatch.setattr(evaluation, "TaskManager", lambda include_defaults: small(include_defaults=False))

    long = choice_task(tmp_path, [{"question": "a", "choices": ["b" * 30, "c"], "label": 0}], num_fewshot=0)
    (tmp_path / "no_data.yaml").write_text(long.read_text().replace("choose.jsonl", "missing.jsonl"))
    (tmp_path / "no_yaml.yaml").write_text("task: [x")
    (tmp_path / "latin.yaml").write_bytes("task: é".encode("latin-1"))
    settings = {"doc_to_text": "{{text}}", "doc_to_target": "", "output_type": "generate_until"}
    write_task(tmp_path, "write", [{"text": "x"}], **settings)
    for words, message in [
        ("--tasks arithmetik", "knows no task 'arithmetik'; did you mean arithmetic?"),
        ("--tasks FOLDER/none.yaml", "none.yaml does not exist"),
        ("--tasks FOLDER/no_data.yaml", "missing.jsonl"),
        ("--tasks FOLDER/latin.yaml", "latin.yaml is not UTF-8 text"),
        ("--tasks FOLDER/no_yaml.yaml", "no_yaml.yaml: the task cannot be loaded: ParserError"),
        ("--tasks FOLDER/choose.yaml", "an answer of the task has 31 tokens, and the longest text of this model 24"),
        ("--tasks FOLDER/choose.yaml --num-fewshot 2", "choose is defined without examples in its prompts"),
        ("--tasks FOLDER/write.yaml", "asks for up to 256 new tokens, and the longest text of this model has 24"),
        ("--tasks FOLDER/choose.yaml --limit 0", "must be a whole number, at least 1"),
    ]:
        assert main(["evaluate", str(frozen), *words.replace("FOLDER", str(tmp_path)).split()]) == 2, words
        error = capsys.readouterr().err.rpartition("error: ")[2]
        assert message in error
        assert error.count("\n") == 1, error
