"""Which files a job reads, how they are named, and what it refuses to start or to go on with."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rust_data.tokenize import tokenize
from tests.rust_data.conftest import read_split, write_jsonl


def source_names(manifest: dict[str, Any]) -> list[str]:
    return [source["file"] for source in manifest["sources"]]


def test_absolute_and_relative_paths_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "b.jsonl", ["two"])
    monkeypatch.chdir(tmp_path)
    for inputs in ([str(tmp_path / "a.jsonl"), "in/b.jsonl"], ["in/b.jsonl", str(tmp_path / "a.jsonl")]):
        manifest = tokenize(inputs, tmp_path / f"out_{inputs[0][0] == 'i'}")
        assert sorted(source_names(manifest)) == ["a.jsonl", "in/b.jsonl"]
    # the bundled corpus is a file of the package, wherever that is
    manifest = tokenize(["sample:edu", "in/b.jsonl"], "out_sample")
    assert source_names(manifest)[1].endswith("in/b.jsonl")


def test_one_file_under_two_names_is_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    monkeypatch.chdir(tmp_path)
    for other in ("./a.jsonl", "link.jsonl", str(tmp_path / "a.jsonl")):
        with pytest.raises(ValueError, match="given more than once"):
            tokenize(["a.jsonl", other], tmp_path / "out")


def test_a_folder_that_links_to_itself_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl", ["one"])
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    assert source_names(tokenize(str(tmp_path / "in"), tmp_path / "out")) == ["a.jsonl"]


@pytest.mark.parametrize("text", ["Быстрая лиса. ", "你好、世界今天天气很好。我们", "12 345\n6", "x!? -- "])
def test_long_documents_are_cut_in_every_script(tmp_path: Path, tiktoken_gpt2: Any, text: str) -> None:
    whole = text * (9_000_000 // len(text.encode()))
    (tmp_path / "a.txt").write_text(whole)
    tokenize(str(tmp_path / "a.txt"), tmp_path / "out")
    np.testing.assert_array_equal(read_split(tmp_path / "out", "train")[:-1], tiktoken_gpt2.encode_ordinary(whole))


def test_shards_of_others_are_left_alone(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two three"])
    for name in ("train_000003.bin", "val.bin"):
        out = tmp_path / name.replace(".", "_")
        out.mkdir()
        (out / name).write_bytes(b"mine")
        for format in ("shards", "nanogpt"):
            with pytest.raises(ValueError, match=rf"{name} is there already; delete it or choose another --out"):
                tokenize([str(source)], out, format=format)
        assert (out / name).read_bytes() == b"mine"


def test_the_longest_line_is_no_matter_of_threads(tmp_path: Path) -> None:
    memory = 4 * 96 << 20  # what three threads need
    write_jsonl(tmp_path / "a.jsonl", ["word " * (memory // 60 - 50), "word " * (memory // 60 + 50)])
    corpora = [
        tokenize(str(tmp_path / "a.jsonl"), tmp_path / f"out{threads}", threads=threads, memory=memory, on_error="skip")
        for threads in (1, 3)
    ]
    assert [corpus["sources"][0]["skipped"] for corpus in corpora] == [1, 1]
    assert corpora[0]["splits"] == corpora[1]["splits"]


def test_resuming_a_complete_corpus_checks_it(tmp_path: Path) -> None:
    source, other = (write_jsonl(tmp_path / f"{name}.jsonl", [f"one two {name}"] * 20) for name in ("a", "bb"))
    out = tmp_path / "out"
    whole = tokenize(str(source), out, shard_tokens=30)
    assert tokenize(str(source), out, shard_tokens=30, resume=True) == whole
    with pytest.raises(ValueError, match=r"input a\.jsonl is missing; input bb\.jsonl is new; repeat"):
        tokenize(str(other), out, shard_tokens=30, resume=True)
    (out / "train_000001.bin").unlink()
    with pytest.raises(OSError, match=r"train_000001\.bin"):
        tokenize(str(source), out, shard_tokens=30, resume=True)


def test_bad_rows_behind_the_last_document_count_once(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "one two three"})] + ['{"text": null}'] * 3
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    out.mkdir()
    # the manifest cannot be written: the run stops behind its last checkpoint
    (out / "manifest.json.tmp").mkdir()
    with pytest.raises(OSError, match=r"manifest\.json"):
        tokenize(str(tmp_path / "a.jsonl"), out, on_error="skip")
    (out / "manifest.json.tmp").rmdir()
    manifest = tokenize(str(tmp_path / "a.jsonl"), out, on_error="skip", resume=True)
    assert (manifest["sources"][0]["documents"], manifest["sources"][0]["skipped"]) == (1, 3)


def test_two_runs_do_not_write_to_one_directory(tmp_path: Path) -> None:
    source, out = write_jsonl(tmp_path / "a.jsonl", ["one two three"]), tmp_path / "out"
    out.mkdir()
    other = os.open(out, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match="another run is writing here"):
        tokenize(str(source), out)
    os.close(other)
    tokenize(str(source), out)


def test_an_input_that_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    out, source = tmp_path / "out", tmp_path / "a.jsonl"
    good = "".join(json.dumps({"text": f"one two {i}"}) + "\n" for i in range(50))
    source.write_text(good + '{"text": null}\n')
    with pytest.raises(ValueError, match="line 51"):
        tokenize(str(source), out, shard_tokens=40)
    journal = json.loads((out / "progress.json").read_text())
    if not journal["sources"][0]["sha256"]:
        # whether the digest was there at the last checkpoint is a matter of time
        journal["sources"][0]["sha256"] = "0" * 64
        (out / "progress.json").write_text(json.dumps(journal))
    source.write_text(good.replace("one", "two") + '{"text": null}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl: changed since it was read; start anew"):
        tokenize(str(source), out, shard_tokens=40, resume=True)


def test_a_corpus_without_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n' * 4)
    with pytest.raises(ValueError, match="the input holds no text: 4 rows and 0 files were left out"):
        tokenize(str(tmp_path / "a.jsonl"), tmp_path / "out", on_error="skip")
    with pytest.raises(ValueError, match="inputs: give at least one"):
        tokenize([], tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed=-1: must be in 0"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"val_tokens": -1}, "val_tokens=-1"),
        ({"part": (-1, 2)}, "part=-1"),
        ({"memory": -1}, "memory=-1"),
    ],
)
def test_numbers_out_of_range_are_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenize("sample:edu", tmp_path / "out", **settings)
