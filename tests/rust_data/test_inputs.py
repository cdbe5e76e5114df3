"""Which files a job reads, how they are named, and what it refuses to start or to go on with."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rust_data.gen import main as gen_main
from rust_data.inspect import main as inspect_main
from rust_data.tokenize import main, tokenize
from rust_data.tokenizer import Tokenizer
from rust_data.verify import main as verify_main
from tests.rust_data.conftest import read_split, tokenizer_json, write_jsonl

HUGE = "9" * 30


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


def test_names_that_are_hidden_or_unknown_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    for name in ("a", ".b", "_c", ".git/d", "_tmp/e", "sub/f", "sub/.ipynb_checkpoints/g"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(folder / f"{name}.jsonl", [f"text of {name}"])
    (folder / "notes.md").write_text("not an input")

    def names(given: Path) -> list[str]:
        manifest = tokenize(str(given), tmp_path / f"out{len(list(tmp_path.iterdir()))}")
        return [Path(name).name for name in source_names(manifest)]

    assert names(folder) == ["a.jsonl", "f.jsonl"]
    assert names(folder / "*.jsonl") == ["a.jsonl"]
    assert names(folder / "**" / "*.jsonl") == ["a.jsonl", "f.jsonl"]
    # what is named is read
    assert names(folder / ".b.jsonl") == [".b.jsonl"]
    assert names(folder / "_*.jsonl") == ["_c.jsonl"]
    assert names(folder / "_tmp") == ["e.jsonl"]
    assert names(folder / ".git" / "*.jsonl") == ["d.jsonl"]
    with pytest.raises(ValueError, match="holds no input file"):
        names(folder / "*" / "g.jsonl")
    assert main([str(folder), "--out", str(tmp_path / "none"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    for name in (".b.jsonl", "_c.jsonl", ".git", "_tmp", ".ipynb_checkpoints", "notes.md"):
        assert f"{name}: " in said


def test_names_that_are_not_utf_8_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    odd = os.fsdecode(os.fsencode(tmp_path / "in") + b"/a\xff.jsonl")
    for name in (odd, tmp_path / "in" / "b.jsonl"):
        Path(name).write_text('{"text": "one"}\n')
    expected = [r"a\xff.jsonl", "b.jsonl"]
    assert source_names(tokenize(str(tmp_path / "in"), tmp_path / "folder")) == expected
    assert source_names(tokenize(str(tmp_path / "in" / "*.jsonl"), tmp_path / "glob")) == expected
    assert source_names(tokenize(odd, tmp_path / "one")) == expected[:1]


@pytest.mark.parametrize("pattern", ["", "**/*.jsonl"])
def test_folders_that_cannot_be_read_are_said(tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", ["one", "two"])
    # deeper than a path can be long: nobody can read it by its name, not even root
    monkeypatch.chdir(folder)
    for _ in range(18):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    monkeypatch.chdir(tmp_path)
    given = str(folder / pattern) if pattern else str(folder)
    with pytest.raises(OSError, match="File name too long"):
        tokenize(given, tmp_path / "stop")
    sources = tokenize(given, tmp_path / "skip", on_error="skip")["sources"]
    assert sources[0]["documents"] == 2
    assert ["File name too long" in source.get("error", "") for source in sources] == [False, True]


@pytest.mark.parametrize("format", ["shards", "nanogpt"])
def test_resuming_a_complete_corpus_compares_everything(tmp_path: Path, gpt2: Tokenizer, format: str) -> None:
    first, second = (write_jsonl(tmp_path / f"{name}.jsonl", ["one two", "three"]) for name in "ab")
    settings: dict[str, Any] = {"format": format, "val_tokens": 3}
    whole = tokenize(str(first), tmp_path / "out", **settings)
    assert tokenize(str(first), tmp_path / "out", **settings, resume=True) == whole
    # the same ranks with another pattern
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": r"\S+|\s+"}, "behavior": "Isolated", "invert": False}
    other = tmp_path / "tokenizer.json"
    pattern = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    other.write_text(json.dumps(tokenizer_json(gpt2, pre_tokenizer=pattern)))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"tokenizer": other}, "the tokenizer's pattern was .*the tokenizer's ignore_merges was true, is false"),
        ({"val_tokens": 2}, "--val-tokens was 3, is 2"),
        ({"column": "body"}, "--column was text, is body"),
        ({"on_error": "skip"}, "--on-error was stop, is skip"),
        ({"part": (0, 2)}, "--part was 0/1, is 0/2"),
        ({"seed": 3, "shard_tokens": 7}, "--shard-tokens was 100000000, is 7; --seed was 0, is 3"),
        ({"inputs": [str(first), str(second)]}, r"input b\.jsonl is new"),
    ]
    for change, message in changes:
        arguments: dict[str, Any] = {"inputs": str(first), **settings, **change}
        with pytest.raises(ValueError, match=f"is complete with other settings: .*{message}.*choose another --out"):
            tokenize(out=tmp_path / "out", resume=True, **arguments)
    # edited at the same size
    first.write_text(first.read_text().replace("one", "six"))
    with pytest.raises(ValueError, match=r"a\.jsonl: changed since it was read"):
        tokenize(str(first), tmp_path / "out", resume=True, **settings)


def test_nanogpt_s_form_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two", "three"])
    arguments = [str(source), "--out", str(tmp_path / "out"), "--val-tokens", "3", "--format", "nanogpt", "--quiet"]
    assert main(arguments) == 0
    assert "train: 2 tokens, 1 documents, 1 shards" in capsys.readouterr().out
    assert main(arguments) == 1
    assert main([*arguments, "--resume"]) == 0
    assert inspect_main([str(tmp_path / "out")]) == 1
    assert "nanoGPT's format" in capsys.readouterr().err


def test_the_dry_run_refuses_what_the_run_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two"] * 9)
    done, file, mine = tmp_path / "done", tmp_path / "file", tmp_path / "mine"
    tokenize(str(source), done)
    file.write_text("")
    mine.mkdir()
    (mine / "val.bin").write_text("")
    for arguments in (
        ["--out", str(done)],
        ["--out", str(done), "--resume", "--val-tokens", "5"],
        ["--out", str(file)],
        ["--out", str(file / "below")],
        ["--out", str(mine)],
        ["--out", str(tmp_path / "new"), "--memory", "1M"],
    ):
        for dry in (["--dry-run"], []):
            assert main([str(source), *arguments, "--quiet", *dry]) == 1
            assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (main, ["sample:edu", "--out", "x", "--part", f"0/{HUGE}"]),
        (main, ["sample:edu", "--out", "x", "--part", "\u00b2/3"]),
        (main, ["sample:edu", "--out", "x", "--seed", HUGE]),
        (main, ["sample:edu", "--out", "x", "--threads", HUGE]),
        (main, ["sample:edu", "--out", "x", "--threads", "100000"]),
        (main, ["sample:edu", "--out", "x", "--memory", HUGE]),
        (main, ["sample:edu", "--out", ""]),
        (gen_main, ["mqar", "--split", "a=1", "--out", ""]),
        (gen_main, ["mqar", "--split", f"a={HUGE}", "--out", "x"]),
        (gen_main, ["mqar", "--split", "a=1", "--pairs", HUGE, "--out", "x"]),
        (gen_main, ["class-tokens", "--split", "a=1", "--counts", f"{HUGE},1", "--out", "x"]),
        (inspect_main, [".", "--documents", HUGE]),
        (inspect_main, [".", "--documents", "-1"]),
        (verify_main, [".", "--seed", "-1"]),
    ],
)
def test_numbers_out_of_range_and_empty_names_are_one_error(
    tmp_path: Path, command: Any, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = command(arguments)
    except SystemExit as error:
        status = error.code
    assert status in (1, 2)
    assert "error: " in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_more_threads_than_the_address_limit_allows(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two"] * 9)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    command = [sys.executable, "-m", "rust_data.tokenize", str(source), "--out", str(tmp_path / "out")]
    run = subprocess.run([*command, "--threads", "5000"], preexec_fn=limit, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("error: --memory")
    assert "fewer threads" in run.stderr


@pytest.mark.parametrize("shard_tokens", [100, 7])
def test_a_document_larger_than_val_is_split(
    tmp_path: Path, shard_tokens: int, tiktoken_gpt2: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(f"word{i}" for i in range(60))
    (tmp_path / "a.txt").write_text(text)
    ids = [*tiktoken_gpt2.encode_ordinary(text), 50256]
    arguments = [str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--val-tokens", "20", "--quiet"]
    assert main([*arguments, "--shard-tokens", str(shard_tokens)]) == 0
    assert "val ends inside a document" in capsys.readouterr().out
    assert read_split(tmp_path / "out", "val").tolist() == ids[:20]
    assert read_split(tmp_path / "out", "train").tolist() == ids[20:]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["splits"]["val"]["cut_document"] is True
    assert inspect_main([str(tmp_path / "out")]) == 0
    # a seed changes the order of documents, and here is one
    shuffled = tokenize(str(tmp_path / "a.txt"), tmp_path / "seed", val_tokens=20, shard_tokens=shard_tokens, seed=4)
    assert shuffled["splits"] == manifest["splits"]


def test_a_run_that_stops_inside_a_val_document_goes_on(tmp_path: Path) -> None:
    text = " ".join(f"word{i}" for i in range(600_000))
    (tmp_path / "a.txt").write_bytes(text.encode() + b" \xff")
    settings: dict[str, Any] = {"val_tokens": 1_500_000, "shard_tokens": 400_000}
    with pytest.raises(ValueError, match="--resume --on-error skip"):
        tokenize(str(tmp_path / "a.txt"), tmp_path / "out", **settings)
    settings["on_error"] = "skip"
    resumed = tokenize(str(tmp_path / "a.txt"), tmp_path / "out", **settings, resume=True)
    assert resumed == tokenize(str(tmp_path / "a.txt"), tmp_path / "fresh", **settings)


def test_long_lines_are_read_one_at_a_time(tmp_path: Path, tiktoken_gpt2: Any) -> None:
    # longer than a reader may hold before its turn, in files that several threads read
    texts = ['a \\ "quoted" line ' * 300_000, "short", "plain words " * 500_000]
    for name in "abc":
        write_jsonl(tmp_path / f"{name}.jsonl", texts)
    tokenize(str(tmp_path), tmp_path / "out", threads=4)
    one = [token for text in texts for token in [*tiktoken_gpt2.encode_ordinary(text), 50256]]
    np.testing.assert_array_equal(read_split(tmp_path / "out", "train"), np.array(one * 3, dtype=np.uint16))
