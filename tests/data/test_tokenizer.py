"""The tokenizer of a corpus: found, compared, or asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from rust_data import Tokenizer
from saf_titan.data.manifest import read_tokenizer
from saf_titan.data.tokenizer import find_tokenizer
from tests.generate.run_folder import VOCABULARY, write_run, write_tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_run(tmp_path)
    return tmp_path / "corpus"


def test_it_lies_beside_the_manifest(corpus: Path) -> None:
    entry = read_tokenizer(corpus / "train_000000.bin")
    assert entry is not None
    assert (entry.name, entry.path) == ("corpus", corpus / "manifest.json")
    assert find_tokenizer(corpus, None, vocab_size=VOCABULARY).sha256 == entry.sha256
    with pytest.raises(ValueError, match=r"has 257 ids, and the model knows 256; give --tokenizer NAME"):
        find_tokenizer(corpus, None, vocab_size=256)


def test_another_one_is_refused(corpus: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "other", sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True))
    other = str(tmp_path / "other" / "tokenizer.json")
    with pytest.raises(ValueError, match=r"other/tokenizer.json is not that of the corpus.* says corpus with"):
        find_tokenizer(corpus, other, vocab_size=VOCABULARY)
    with pytest.raises(ValueError, match="gpt2 is not that of the corpus"):
        find_tokenizer(corpus, "gpt2", vocab_size=60_000)


def test_what_is_gone_is_asked_for(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    shutil.move(corpus / "tokenizer.json", copy)
    with pytest.raises(ValueError, match=r"names the tokenizer corpus, whose file is not beside it; copy it to .*json"):
        find_tokenizer(corpus, None, vocab_size=VOCABULARY)
    assert find_tokenizer(corpus, str(copy), vocab_size=VOCABULARY).vocab_size == 257
    (corpus / "manifest.json").unlink()
    with pytest.raises(ValueError, match="do not name their tokenizer; give --tokenizer"):
        find_tokenizer(corpus, None, vocab_size=VOCABULARY)
    shutil.rmtree(corpus)
    with pytest.raises(ValueError, match=r"data.path = .*corpus of the run is gone"):
        find_tokenizer(corpus, None, vocab_size=VOCABULARY)
    assert find_tokenizer(corpus, str(copy), vocab_size=VOCABULARY).vocab_size == 257


@pytest.mark.parametrize(("file", "kind"), [("manifest.json", "rust_data.tokens"), ("meta.json", "nanogpt")])
def test_the_bundled_one_by_its_name(tmp_path: Path, file: str, kind: str) -> None:
    sha256 = Tokenizer("gpt2").sha256
    (tmp_path / file).write_text(json.dumps({"format": kind, "tokenizer": {"name": "gpt2", "sha256": sha256}}))
    assert find_tokenizer(tmp_path, None, vocab_size=50_304).name == "gpt2"
    (tmp_path / file).write_text(json.dumps({"format": kind, "tokenizer": {"name": "gpt2"}}))
    with pytest.raises(ValueError, match=r"tokenizer.sha256 is missing"):
        find_tokenizer(tmp_path, None, vocab_size=50_304)
    (tmp_path / file).write_text("{")
    with pytest.raises(ValueError, match=rf"{file}: cannot be read"):
        find_tokenizer(tmp_path, None, vocab_size=50_304)
