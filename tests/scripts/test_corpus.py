"""The corpus with a small vocabulary: its size is an option, and a folder keeps the vocabulary it was made with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rust_data.tokenize import SAMPLES
from saf_titan.data.manifest import read_manifest

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce" / "corpus.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("corpus_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_vocabulary_has_the_size_that_is_asked_for(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(SAMPLES["sample:edu"]), "--out", str(tmp_path)]
    assert script.main([*words, "--vocab-size", "320"]) == 0
    shards = tmp_path / "shards"
    assert capsys.readouterr().out.splitlines()[-1] == str(shards)
    assert read_manifest(shards).vocab_size == 320

    written = (shards / "manifest.json").stat().st_mtime_ns
    assert script.main([*words, "--vocab-size", "320"]) == 0
    assert (shards / "manifest.json").stat().st_mtime_ns == written
    # shards of another vocabulary are neither taken for the ones that were asked for nor overwritten
    capsys.readouterr()
    assert script.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {shards} holds a corpus with a vocabulary of 320 tokens, and 4096 are asked for")
    assert (shards / "manifest.json").stat().st_mtime_ns == written


def test_a_vocabulary_that_cannot_be_made_is_one_line(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "short.parquet"
    pq.write_table(pa.table({"text": ["a word and a word and a word"]}), text)
    words = [str(text), "--out", str(tmp_path / "out")]
    assert script.main([*words, "--vocab-size", "256"]) == 2
    assert "'256' must be a whole number, at least 257" in capsys.readouterr().err
    assert script.main([*words, "--vocab-size", "1000"]) == 2
    assert f"error: {text} is too short for 1000 tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
