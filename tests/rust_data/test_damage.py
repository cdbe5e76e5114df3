"""What happens when something breaks: bad rows, bad files, a full disk, a killed run."""

import gzip
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rust_data.inspect import main as inspect_main
from rust_data.manifest import read_manifest
from rust_data.merge import merge
from rust_data.tokenize import main as tokenize_main
from rust_data.tokenize import tokenize
from rust_data.tokenizer import Tokenizer
from rust_data.verify import verify
from tests.rust_data.conftest import EOT, read_all, read_split, shard_bytes, tokenizer_json, write_jsonl, write_parquet


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "rust_data.tokenize", *map(str, arguments)]


def num_documents(directory: Path) -> int:
    return int(np.count_nonzero(read_all(directory) == EOT))


def bad_parquet(path: Path) -> None:
    text = pa.array([b"good", None, b"bad \xff", b"good"], type=pa.binary())
    pq.write_table(pa.table({"text": text}), path)


def bad_jsonl(path: Path) -> None:
    lines = [b'{"text": "good"}', b'{"text": null}', b'{"text": "bad \xff"}', b'{"text": "good"}', b""]
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize(
    ("name", "write", "first"),
    [
        ("a.parquet", bad_parquet, "row 1: text is null"),
        ("a.jsonl", bad_jsonl, 'line 2: field "text" is missing or null'),
    ],
)
def test_bad_rows(tmp_path: Path, name: str, write: Any, first: str) -> None:
    write(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name}: {first} \(--on-error skip"):
        tokenize([str(tmp_path / name)], tmp_path / "stop")
    assert not (tmp_path / "stop" / "manifest.json").exists()
    manifest = tokenize([str(tmp_path / name)], tmp_path / "skip", on_error="skip")
    assert (manifest["sources"][0]["documents"], manifest["sources"][0]["skipped"]) == (2, 2)
    assert num_documents(tmp_path / "skip") == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": 5}', "invalid type: integer"),
        ('{"text": ["a"]}', "found an array"),
        ('{"text": "a"', "bad JSON: EOF while parsing an object at column 12"),
        ('{"text": "a"} x', "trailing characters"),
        ('["text"]', "an object with a string field"),
        ('{"body": "a"}', "missing or null"),
    ],
)
def test_bad_json(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=rf"line 3: .*{reason}"):
        tokenize([str(tmp_path / "a.jsonl")], tmp_path / "out")


def test_a_byte_order_mark_in_front_of_json_lines_is_no_text(tmp_path: Path, gpt2: Tokenizer) -> None:
    (tmp_path / "a.jsonl").write_bytes('\ufeff{"text": "one"}\r\n{"text": "\ufefftwo"}\r\n'.encode())
    tokenize([str(tmp_path / "a.jsonl")], tmp_path / "out")
    assert gpt2.decode(read_split(tmp_path / "out", "train")) == "one<|endoftext|>\ufefftwo<|endoftext|>"


def test_escaped_lone_surrogates_are_text(tmp_path: Path, tiktoken_gpt2: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b \\ud83d\\ude00 \\udc00"}\n')
    tokenize([str(tmp_path / "a.jsonl")], tmp_path / "out")
    expected = tiktoken_gpt2.encode_ordinary("a\ufffdb \U0001f600 \ufffd")
    assert read_all(tmp_path / "out").tolist() == [*expected, EOT]


def test_damaged_row_group(tmp_path: Path, sample_texts: list[str]) -> None:
    path = write_parquet(tmp_path / "a.parquet", sample_texts[:150], compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset + column.total_compressed_size // 2
    data[start : start + 200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.parquet: row \d+: .*broken parquet file"):
        tokenize([str(path)], tmp_path / "stop")
    manifest = tokenize([str(path)], tmp_path / "skip", on_error="skip")
    source = manifest["sources"][0]
    assert source["documents"] + source["skipped"] == 150
    assert 0 < source["skipped"] <= 50
    assert num_documents(tmp_path / "skip") == source["documents"]


def test_codecs_that_are_left_out_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet", compression="brotli")
    with pytest.raises(ValueError, match=r"a\.parquet: brotli is not supported; write it with snappy, zstd or gzip"):
        tokenize([str(tmp_path / "a.parquet")], tmp_path / "out")


def test_unreadable_files(tmp_path: Path) -> None:
    good = write_jsonl(tmp_path / "a.jsonl", ["good"])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nonsense PAR1")
    packed = gzip.compress(("\n".join(json.dumps({"text": f"row {i}"}) for i in range(20_000))).encode())
    (tmp_path / "c.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    inputs = [str(good), str(tmp_path / "b.parquet"), str(tmp_path / "c.jsonl.gz")]
    with pytest.raises(ValueError, match=r"b\.parquet: broken parquet file"):
        tokenize(inputs, tmp_path / "stop")
    with pytest.raises(OSError, match=r"c\.jsonl\.gz"):
        tokenize(inputs[2:], tmp_path / "stop_too")
    manifest = tokenize(inputs, tmp_path / "skip", on_error="skip")
    errors = [source.get("error") for source in manifest["sources"]]
    assert errors[0] is None
    assert "broken parquet file" in errors[1]
    assert "c.jsonl.gz" in errors[2]
    assert 1 < num_documents(tmp_path / "skip") == sum(source["documents"] for source in manifest["sources"])


def test_text_that_breaks_off_keeps_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"some words " * 150_000 + b"\xff more")
    with pytest.raises(ValueError, match=r"a\.txt: invalid UTF-8 at byte 1650000"):
        tokenize([str(tmp_path / "a.txt")], tmp_path / "stop")
    manifest = tokenize([str(tmp_path / "a.txt")], tmp_path / "skip", on_error="skip")
    assert (manifest["sources"][0]["documents"], manifest["sources"][0]["skipped"]) == (1, 1)
    assert num_documents(tmp_path / "skip") == 1


def test_packed_text_that_breaks_off_keeps_what_could_be_unpacked(tmp_path: Path) -> None:
    words = " ".join(f"word{i % 977 * 31}" for i in range(200_000))
    packed = gzip.compress(words.encode())
    (tmp_path / "a.txt.gz").write_bytes(packed[: len(packed) * 2 // 3])
    manifest = tokenize([str(tmp_path / "a.txt.gz")], tmp_path / "out", on_error="skip")
    assert "a.txt.gz" in manifest["sources"][0]["error"]
    text = Tokenizer("gpt2").decode(read_split(tmp_path / "out", "train")[:-1])
    assert len(text) > len(words) // 2
    assert words.startswith(text)


def test_a_text_that_a_pattern_gives_up_on_is_a_bad_row(tmp_path: Path, gpt2: Tokenizer) -> None:
    split = {"type": "Split", "pattern": {"Regex": r"(x+x+)+(?=y)|\S+|\s+"}, "behavior": "Isolated", "invert": False}
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    sequence = {"type": "Sequence", "pretokenizers": [split, bytes_alone]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(gpt2, pre_tokenizer=sequence)))
    source = write_jsonl(tmp_path / "a.jsonl", ["good", "x" * 5_000 + "z", "good"])
    settings = {"tokenizer": tmp_path / "tokenizer.json"}
    with pytest.raises(ValueError, match=r"a\.jsonl: line 2: splitting text"):
        tokenize([str(source)], tmp_path / "stop", **settings)
    manifest = tokenize([str(source)], tmp_path / "skip", on_error="skip", **settings)
    assert (manifest["sources"][0]["documents"], manifest["sources"][0]["skipped"]) == (2, 1)


def test_damaged_manifests_are_named(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two"])
    manifest = tokenize([str(source)], tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    without = {name: value for name, value in manifest.items() if name != "tokenizer"}
    for text, message in (
        (b"[]", "a JSON list"),
        (json.dumps(without).encode(), "tokenizer is missing"),
        (b"\xff", "not JSON"),
    ):
        path.write_bytes(text)
        for check in (verify, read_manifest):
            with pytest.raises(ValueError, match=rf"manifest\.json: .*{message}"):
                check(tmp_path / "out")


def test_verify_compares_something(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two three four five"])
    tokenize([str(source)], tmp_path / "out", shard_tokens=3)
    with pytest.raises(ValueError, match="no whole document was found within 65536 tokens of a sampled position"):
        verify(tmp_path / "out")
    with pytest.raises(ValueError, match="documents=0: must be in 1"):
        verify(tmp_path / "out", num_documents=0)


def test_a_killed_flattening_is_finished(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two three"] * 9)
    whole, out = tmp_path / "whole", tmp_path / "out"
    settings: dict[str, Any] = {"shard_tokens": 8, "format": "nanogpt"}
    meta = tokenize([str(source)], whole, **settings)
    assert meta["format"] == "nanogpt"
    # stops behind the flat files, before meta.json
    (out / "meta.json.tmp").mkdir(parents=True)
    with pytest.raises(OSError, match=r"meta\.json'"):
        tokenize([str(source)], out, **settings)
    (out / "meta.json.tmp").rmdir()
    killed = {path.name: path.read_bytes() for path in out.iterdir()}
    assert {"train.bin", "train_000001.bin", "progress.json"} <= killed.keys()
    with pytest.raises(ValueError, match="holds an unfinished run"):
        tokenize([str(source)], out, **settings)
    assert tokenize([str(source)], out, **settings, resume=True) == meta
    # stops behind meta.json, before the last shard is gone
    for name in ("train_000001.bin", "progress.json"):
        (out / name).write_bytes(killed[name])
    assert tokenize([str(source)], out, **settings, resume=True) == meta
    assert shard_bytes(out) == shard_bytes(whole)
    # a split without tokens has no file: an empty one cannot be mapped
    assert sorted(path.name for path in out.iterdir()) == ["meta.json", "train.bin"]
    with pytest.raises(ValueError, match="--format was nanogpt, is shards"):
        tokenize([str(source)], out, shard_tokens=8, resume=True)
    with (out / "train.bin").open("r+b") as file:
        file.truncate(10)
    with pytest.raises(ValueError, match=r"train\.bin: changed since it was written"):
        tokenize([str(source)], out, **settings, resume=True)


def test_a_full_disk_leaves_no_half_shard(tmp_path: Path, sample_texts: list[str]) -> None:
    source = write_parquet(tmp_path / "a.parquet", sample_texts)

    def limit_file_size() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    arguments = command(source, "--out", tmp_path / "out", "--val-tokens", "100K", "--quiet")
    limited = subprocess.run(arguments, preexec_fn=limit_file_size, capture_output=True, text=True)
    assert limited.returncode == 1
    assert "train_000000.bin'" in limited.stderr
    assert ".tmp" not in limited.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("*.bin")) == ["val_000000.bin"]
    assert not (tmp_path / "out" / "manifest.json").exists()
    # with room again the run goes on
    tokenize([str(source)], tmp_path / "out", val_tokens=100_000, resume=True)
    tokenize([str(source)], tmp_path / "fresh", val_tokens=100_000)
    assert shard_bytes(tmp_path / "out") == shard_bytes(tmp_path / "fresh")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "txt"])
@pytest.mark.parametrize("kill_at", [0, 7])
def test_a_killed_run_resumes_to_the_same_bytes(
    tmp_path: Path, kind: str, kill_at: int, sample_texts: list[str]
) -> None:
    # one bad row in the middle, so that the counts have to survive too
    if kind == "parquet":
        source = write_parquet(
            tmp_path / "a.parquet", [*sample_texts[:900], None, *sample_texts[900:]], row_group_size=400
        )
    elif kind == "jsonl":
        source = write_jsonl(tmp_path / "a.jsonl", [*sample_texts[:900], None, *sample_texts[900:]])
    else:
        source = tmp_path / "a.txt"
        source.write_text("\n".join(sample_texts))
    val_tokens = "0" if kind == "txt" else "50K"
    settings = ["--val-tokens", val_tokens, "--shard-tokens", "40K", "--on-error", "skip", "--quiet"]
    subprocess.run(command(source, "--out", tmp_path / "whole", *settings), check=True, stdout=subprocess.DEVNULL)

    out = tmp_path / "out"
    with subprocess.Popen(command(source, "--out", out, *settings), stdout=subprocess.DEVNULL) as process:
        while not (out / f"train_{kill_at:06}.bin").exists():
            assert process.poll() is None
        process.kill()
    assert not (out / "manifest.json").exists()
    with pytest.raises(ValueError, match="--resume goes on with it"):
        tokenize([str(source)], out)
    assert inspect_main([str(out)]) == 1
    resumed = command(source, "--out", out, *settings, "--resume", "--threads", "3")
    subprocess.run(resumed, check=True, stdout=subprocess.DEVNULL)
    assert shard_bytes(out) == shard_bytes(tmp_path / "whole")
    assert (out / "manifest.json").read_bytes() == (tmp_path / "whole" / "manifest.json").read_bytes()


def test_resume_refuses_other_settings(tmp_path: Path, sample_texts: list[str]) -> None:
    source = write_parquet(tmp_path / "a.parquet", [*sample_texts[:100], None])
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="row 100"):
        tokenize([str(source)], out, shard_tokens=10_000)
    with pytest.raises(ValueError, match="--shard-tokens was 10000, is 20000"):
        tokenize([str(source)], out, shard_tokens=20_000, resume=True)
    shard = out / "train_000000.bin"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ValueError, match=r"train_000000\.bin: changed since it was written"):
        tokenize([str(source)], out, shard_tokens=10_000, resume=True)


def test_resume_of_a_complete_run_changes_nothing(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    first = tokenize([str(source)], tmp_path / "out")
    before = shard_bytes(tmp_path / "out")
    assert tokenize([str(source)], tmp_path / "out", resume=True) == first
    assert shard_bytes(tmp_path / "out") == before
    with pytest.raises(ValueError, match="is complete with other settings: --shard-tokens was 100000000, is 5"):
        tokenize([str(source)], tmp_path / "out", resume=True, shard_tokens=5)


@pytest.mark.parametrize(
    ("offset", "message"),
    [(0, "not a token shard"), (8, "counts disagree"), (12, "bytes a token"), (1024 + 41, "id ")],
)
def test_inspect_sees_tampering(tmp_path: Path, offset: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two three " * 20])
    tokenize([str(source)], tmp_path / "out")
    shard = tmp_path / "out" / "train_000000.bin"
    assert inspect_main([str(tmp_path / "out")]) == 0
    data = bytearray(shard.read_bytes())
    data[offset] = 0xFF
    shard.write_bytes(data)
    assert inspect_main([str(shard)]) == 1
    assert message in capsys.readouterr().err
    shard.write_bytes(data[:-2])
    assert inspect_main([str(tmp_path / "out")]) == 1


def test_inspect_checks_the_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two three " * 20])
    tokenize([str(source)], tmp_path / "out")
    shard = tmp_path / "out" / "train_000000.bin"
    data = bytearray(shard.read_bytes())
    data[1024] ^= 1
    shard.write_bytes(data)
    assert inspect_main([str(tmp_path / "out")]) == 1
    assert "the manifest says" in capsys.readouterr().err
    assert inspect_main([str(tmp_path / "out"), "--no-digest"]) == 0
    assert inspect_main([str(shard), "--no-digest"]) == 1
    assert "a single file has no manifest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["tokenizer"], None, "tokenizer is None, expected an object"),
        (["tokenizer", "sha256"], None, r"tokenizer\.sha256 is None, expected a text"),
        (["splits"], {}, r"splits\.train is missing"),
        (["splits", "val"], None, r"splits\.val is None"),
        (["splits", "train", "shards"], [], r"splits\.train\.tokens is 3, but the tokens of its shards"),
        (["splits", "train", "shards", 0, "tokens"], True, r"shards\[0\]\.tokens is True, expected a number"),
        (["splits", "train", "shards", 0, "file"], "../a", "expected the name of a file in the same"),
        (["sources"], [None], r"sources\[0\] is None"),
        (["part"], 3, "part is 3, expected two numbers"),
        (["part"], [2, 1], r"part is \[2, 1\], expected two numbers"),
        (["complete"], False, "complete is False"),
    ],
)
def test_wrong_fields_of_a_manifest_are_named(tmp_path: Path, keys: list[Any], value: Any, message: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two"])
    table = manifest = tokenize([str(source)], tmp_path / "out")
    for key in keys[:-1]:
        table = table[key]
    table[keys[-1]] = value
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    for check in (verify, read_manifest, lambda folder: merge(tmp_path / "merged", [folder])):
        with pytest.raises(ValueError, match=rf"manifest\.json: .*{message}"):
            check(tmp_path / "out")
    assert inspect_main([str(tmp_path / "out")]) == 1
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("ending", ["txt", "jsonl", "parquet"])
def test_files_that_cannot_be_read_are_left_out_alike(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["good", "news"])
    # one that opens but fails at each read, and a link to itself, which nobody can open
    (tmp_path / f"b.{ending}").symlink_to("/proc/self/mem")
    (tmp_path / f"c.{ending}").symlink_to(tmp_path / f"c.{ending}")
    with pytest.raises((OSError, ValueError), match=rf"[bc]\.{ending}"):
        tokenize(str(tmp_path), tmp_path / "stop")
    assert not (tmp_path / "stop").exists()
    arguments = [str(tmp_path), "--out", str(tmp_path / "skip"), "--val-tokens", "0", "--on-error", "skip"]
    assert tokenize_main([*arguments, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert f"b.{ending}: " in said
    assert f"c.{ending}: " in said
    sources = read_manifest(tmp_path / "skip")["sources"]
    assert len([source for source in sources if "error" in source]) == 2
    assert num_documents(tmp_path / "skip") == 2


def test_a_failed_run_leaves_nothing_or_what_can_be_resumed(tmp_path: Path, sample_texts: list[str]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [*sample_texts[:60], None, *sample_texts[60:90]])
    out = tmp_path / "new" / "out"
    for seed in (0, 1):
        with pytest.raises(ValueError, match=r"line 61.*\(--on-error skip"):
            tokenize(str(source), out, seed=seed)
        assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"line 61.*\(--resume --on-error skip"):
        tokenize(str(source), out, shard_tokens=5000)
    assert not list(out.glob("*.tmp"))
    resumed = tokenize(str(source), out, shard_tokens=5000, on_error="skip", resume=True)
    fresh = tokenize(str(source), tmp_path / "fresh", shard_tokens=5000, on_error="skip")
    assert resumed == fresh
    assert shard_bytes(out) == shard_bytes(tmp_path / "fresh")


def test_numbers_that_json_lacks_padding_and_marks(tmp_path: Path, gpt2: Tokenizer) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"a": float("nan"), "text": "one", "b": [float("inf"), -float("inf")]}, {"text": "NaN", "c": float("nan")}]
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in" / "b.txt.gz").write_bytes(gzip.compress(b"a ") + bytes(700) + gzip.compress(b"b") + bytes(512))
    (tmp_path / "in" / "c.txt").write_bytes("\ufeffthree\ufeff".encode())
    tokenize(str(tmp_path / "in"), tmp_path / "out")
    texts = gpt2.decode(read_split(tmp_path / "out", "train")).split("<|endoftext|>")
    assert texts == ["one", "NaN", "a b", "three\ufeff", ""]
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"a") + b"junk")
    with pytest.raises(OSError, match=r"d\.txt\.gz"):
        tokenize(str(tmp_path / "d.txt.gz"), tmp_path / "junk")


def test_a_parquet_column_of_nulls_alone_has_bad_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["good"])
    pq.write_table(pa.table({"text": pa.nulls(70_000)}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet: row 0: text is null"):
        tokenize(str(tmp_path), tmp_path / "stop")
    manifest = tokenize(str(tmp_path), tmp_path / "skip", on_error="skip")
    assert [source["skipped"] for source in manifest["sources"]] == [0, 70_000]
