"""A run's folder with a corpus, its tokenizer, a configuration, and checkpoints of random weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers

from rust_data import Tokenizer
from saf_titan.config import load_config
from saf_titan.models import model_spec
from saf_titan.run.resume import MODEL_KEY, PLAN_KEY, model_settings
from saf_titan.saf.install.checkpoint import write_checkpoint
from saf_titan.saf.plan.plan import StaticPlan
from tests.data.corpus import TOKENIZER_SHA256, write_corpus
from tests.saf import synthetic
from tests.saf.plans import plan_of

T, VOCABULARY = synthetic.T, 257
"""The length of the patterns and of training; the 256 bytes and the end of a document."""


def write_tokenizer(folder: Path, alphabet: list[str] | None = None) -> Tokenizer:
    """Write a tokenizer.json that gives one id a byte."""
    letters = alphabet or sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = HfTokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json")


GPT = 'flavor = "debug", num_heads = 3, dim = 24, init_std = 0.2'


def write_run(folder: Path, model: str = GPT, *, seq_len: int = T) -> Path:
    """Write <folder>/corpus and <folder>/run with its config.toml; `model` holds further keys of [model]."""
    tokenizer = write_tokenizer(folder / "corpus")
    ids = np.random.default_rng(0).integers(0, 256, size=600)
    write_corpus(folder / "corpus", train=ids[:300], val=ids[300:], vocab_size=VOCABULARY, eot=256)
    path = folder / "corpus/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tokenizer"] |= {"name": "corpus", "sha256": tokenizer.sha256}
    for shard in (shard for split in manifest["splits"].values() for shard in split["shards"]):
        file = folder / "corpus" / shard["file"]
        content = file.read_bytes().replace(bytes.fromhex(TOKENIZER_SHA256), bytes.fromhex(tokenizer.sha256))
        file.write_bytes(content)
        shard["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(manifest))
    (folder / "run").mkdir()
    (folder / "run/config.toml").write_text(
        f'data.path = "{folder / "corpus"}"\n'
        f"model = {{num_layers = 2, vocab_size = 260, {model}}}\n"
        f'training = {{seq_len = {seq_len}, mixed_precision_param = "float32"}}\n'
    )
    return folder / "run"


def write_step(run_folder: Path, step: int, plan: StaticPlan | None) -> Path:
    """Write a checkpoint as the trainer lays it out."""
    run = load_config(run_folder / "config.toml")
    torch.manual_seed(step)
    model = model_spec(run.model, run.shape, max_seq_len=run.training.seq_len).model.build()
    model.init_weights()
    state = {MODEL_KEY: model_settings(run)} | ({PLAN_KEY: plan.to_bytes()} if plan is not None else {})
    folder = run_folder / "checkpoint" / f"step-{step}"
    write_checkpoint({**model.state_dict(), "train_state": state}, folder)
    return folder


def half_static(content: str = "mean") -> StaticPlan:
    """A plan of three of the six heads."""
    return plan_of(synthetic.calibration([[0.1, 0.2, 0.9], [0.3, 0.4, 0.8]]), step=4, rate=0.5, content=content)
