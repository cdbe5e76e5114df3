"""From texts and a tokenizer of one's own to a folder of transformers: shards, a frozen run, export, the same text."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

import rust_data
import saf_titan.hf
from rust_data.tokenize import tokenize
from saf_titan.generate.__main__ import main as generate
from saf_titan.hf.__main__ import main
from saf_titan.saf.install.checkpoint import model_tensors, read_checkpoint
from saf_titan.saf.plan.plan import StaticPlan
from tests.warm.python import warm_python

TINY = Path(__file__).parents[1] / "e2e/tiny.toml"
WORDS = "the history of the world, it's 1234 naïve don'ts\n\n  and  spaces. 東京 "
ODD = [
    "",
    " ",
    "Don't panic: naïve 東京 \n\n  1234567\U0001f600",
    "\r\n\t\u00a0\u3000x\u0301",
    "THE WORLD'S  end...\n",
    "\u0000\u007f\uffff mixed \u202e text",
    "a" * 300,
]
# Llama 3's splits, not those of GPT-2 that a default would use
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    tokenizer.pre_tokenizer[1].add_prefix_space = False
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|begin|>", "<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    # text of its own at the beginning, which the ids of the corpus do not have; and no decoder
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
    )
    tokenizer.save(str(path))


def train(config: Path, *words: str) -> None:
    subprocess.run([warm_python(), "-m", "saf_titan.train", "--config", str(config), *words], check=True)


def test_the_exported_folder_reads_and_writes_as_the_run_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(tmp_path / "mine.json")
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": WORDS * 40}) + "\n" for _ in range(8)))
    corpus = tmp_path / "corpus"
    tokenize(str(tmp_path / "text.jsonl"), corpus, tokenizer=tmp_path / "mine.json", val_tokens=3000)
    (tmp_path / "mine.json").unlink()

    config = tmp_path / "run.toml"
    sizes = 'vocab_size = 320\nposition = "learned"\nbias = true\n'
    config.write_text(f'data.path = "{corpus}"\n' + TINY.read_text().replace("vocab_size = 256\n", sizes))
    run = tmp_path / "run"
    train(config, "--dump_folder", str(run), "--training.steps", "6")
    # it goes on with static heads and biases
    train(config, "--dump_folder", str(run))
    checkpoint = run / "checkpoint/step-8"
    state = read_checkpoint(checkpoint)
    plan, weights = StaticPlan.from_bytes(state["train_state"]["saf_plan"]), model_tensors(state)
    assert len(plan.heads) == 2
    moments = state["optimizer"]
    for head in plan.heads:
        rows = slice(8 * head.head, 8 * head.head + 8)
        for name in (f"layers.{head.layer}.attention.qkv_linear.w{kind}.bias" for kind in "qk"):
            assert not weights[name][rows].any()
            if name.endswith("wq.bias"):
                assert weights[name].any()
            for moment in ("exp_avg", "exp_avg_sq"):
                assert not moments[f"state.{name}.{moment}"][rows].any()

    assert main(["export", str(checkpoint), "--out", str(tmp_path / "model")]) == 0
    assert "tokenizer" in capsys.readouterr().out
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "model"), rust_data.Tokenizer(corpus / "tokenizer.json")
    for text in [*ODD, WORDS, "".join(map(chr, range(1, 3000)))]:
        ids = ours.encode(text).tolist()
        assert theirs(text)["input_ids"] == ids, text
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text == ours.decode(ids)
    assert theirs.eos_token_id == ours.eot

    prompt = "the history of"
    words = ["--prompt", prompt, "--temperature", "0", "--max-new-tokens", "20"]
    assert generate([str(run), *words]) == 0
    text = capsys.readouterr().out
    assert generate([str(tmp_path / "model"), *words]) == 0
    assert capsys.readouterr().out == text
    model = saf_titan.hf.load(tmp_path / "model")
    inputs = theirs(prompt, return_tensors="pt")
    with torch.no_grad():
        written = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    assert theirs.decode(written[0], skip_special_tokens=True) + "\n" == text
