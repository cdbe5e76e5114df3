"""Files to shards: every format gives the same tokens, and the manifest says what is there."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rust_data.inspect import check_shard
from rust_data.tokenize import main, tokenize
from rust_data.tokenizer import Tokenizer
from rust_data.verify import verify
from tests.rust_data.conftest import EOT, read_all, read_split, shard_bytes, write_jsonl, write_parquet


def expected_tokens(texts: list[str], encoding: Any) -> np.ndarray:
    documents = encoding.encode_ordinary_batch(texts, num_threads=1)
    return np.array([token for document in documents for token in [*document, EOT]], dtype=np.uint16)


def test_shards_of_the_bundled_sample(tmp_path: Path, sample_texts: list[str], tiktoken_gpt2: Any) -> None:
    manifest = tokenize(["sample:edu"], tmp_path / "out", val_tokens=100_000, shard_tokens=300_000)
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert (manifest["dtype"], manifest["tokenizer"]["vocab_size"]) == ("uint16", 50257)
    np.testing.assert_array_equal(read_all(tmp_path / "out"), expected_tokens(sample_texts, tiktoken_gpt2))
    train, val = manifest["splits"]["train"], manifest["splits"]["val"]
    assert [shard["tokens"] for shard in train["shards"][:-1]] == [300_000] * (len(train["shards"]) - 1)
    assert train["documents"] + val["documents"] == len(sample_texts)
    assert manifest["sources"][0]["documents"] == len(sample_texts)
    for shard in train["shards"] + val["shards"]:
        check_shard(tmp_path / "out" / shard["file"], shard)
    assert verify(tmp_path / "out", num_documents=30) > 10


def test_val_is_the_leading_whole_documents(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two three", "four five", "six", "seven"])
    tokenize([str(source)], tmp_path / "out", val_tokens=5)
    assert np.flatnonzero(read_split(tmp_path / "out", "val") == EOT).tolist() == [3, 6]
    assert np.count_nonzero(read_split(tmp_path / "out", "train") == EOT) == 2


def test_val_that_takes_everything_is_refused(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["one two three"])
    with pytest.raises(ValueError, match="--val-tokens 100 takes the whole corpus of 4 tokens"):
        tokenize([str(source)], tmp_path / "out", val_tokens=100)
    # nothing is in the way of the next try
    assert not (tmp_path / "out").exists()
    assert tokenize([str(source)], tmp_path / "out", val_tokens=0)["splits"]["train"]["tokens"] == 4


def test_one_end_of_text_a_document(tmp_path: Path, gpt2: Tokenizer) -> None:
    # the empty one and the one that spells the token out included; two documents cross a shard border
    texts = ["", "a", "<|endoftext|>", "one two three four five six", "", "seven eight nine ten"]
    source = write_parquet(tmp_path / "a.parquet", texts)
    manifest = tokenize([str(source)], tmp_path / "out", shard_tokens=5)
    tokens = read_split(tmp_path / "out", "train")
    parts = np.split(tokens, np.flatnonzero(tokens == EOT) + 1)[:-1]
    assert [gpt2.decode(part[:-1]) for part in parts] == texts
    shards = manifest["splits"]["train"]["shards"]
    assert [shard["tokens"] for shard in shards[:-1]] == [5] * (len(shards) - 1)
    headers = [np.fromfile(tmp_path / "out" / shard["file"], dtype="<i4", count=256) for shard in shards]
    assert sum(header[6] for header in headers) == len(texts)


FORMATS = {
    "snappy": lambda path, texts: write_parquet(path / "a.parquet", texts, compression="snappy"),
    "zstd": lambda path, texts: write_parquet(path / "a.parquet", texts, compression="zstd"),
    "gzip": lambda path, texts: write_parquet(path / "a.parquet", texts, compression="gzip"),
    "plain_pages": lambda path, texts: write_parquet(
        path / "a.parquet", texts, use_dictionary=False, data_page_version="2.0", data_page_size=4096
    ),
    "one_row_group": lambda path, texts: write_parquet(path / "a.parquet", texts, row_group_size=10**6),
    "jsonl": lambda path, texts: write_jsonl(path / "a.jsonl", texts),
    "jsonl_gz": lambda path, texts: _compress(write_jsonl(path / "a.jsonl", texts), ".gz", gzip.compress),
    "jsonl_zst": lambda path, texts: _compress(write_jsonl(path / "a.jsonl", texts), ".zst", pa.Codec("zstd").compress),
}


def _compress(path: Path, ending: str, compress: Any) -> Path:
    data = path.read_bytes()
    half = len(data) // 2
    packed = path.with_name(path.name + ending)
    # two members, as parallel compressors write them
    packed.write_bytes(b"".join(bytes(compress(member)) for member in (data[:half], data[half:])))
    path.unlink()
    return packed


@pytest.fixture(scope="module")
def some_texts(sample_texts: list[str]) -> list[str]:
    return ["", *sample_texts[:230], "", 'naïve \u4e2d\u6587 \U0001f600 \u2028 \\u0041 "quoted"\n\ttab']


@pytest.fixture(scope="module")
def bytes_of_parquet(tmp_path_factory: pytest.TempPathFactory, some_texts: list[str]) -> Any:
    folder = tmp_path_factory.mktemp("parquet")
    reference = write_parquet(folder / "reference.parquet", some_texts)
    tokenize([str(reference)], folder / "out", shard_tokens=40_000, val_tokens=10_000, threads=1)
    return shard_bytes(folder / "out")


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("name", FORMATS)
def test_formats_and_threads_do_not_show(
    tmp_path: Path, name: str, threads: int, some_texts: list[str], bytes_of_parquet: Any
) -> None:
    source = FORMATS[name](tmp_path, some_texts)
    tokenize([str(source)], tmp_path / "out", shard_tokens=40_000, val_tokens=10_000, threads=threads)
    assert shard_bytes(tmp_path / "out") == bytes_of_parquet


def test_text_file_is_one_document(tmp_path: Path, sample_texts: list[str], tiktoken_gpt2: Any) -> None:
    # several pieces long: they must join to the ids of the whole
    text = "\n\n".join(sample_texts[:900])
    assert len(text) > 3 << 20
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_bytes(b"")
    tokenize([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], tmp_path / "out", threads=2)
    np.testing.assert_array_equal(read_all(tmp_path / "out"), expected_tokens([text, ""], tiktoken_gpt2))


def test_long_rows_are_read_in_pieces(tmp_path: Path, sample_texts: list[str], tiktoken_gpt2: Any) -> None:
    texts = ["short", "\n".join(sample_texts[:700]), "end"]
    expected = expected_tokens(texts, tiktoken_gpt2)
    for source in (write_parquet(tmp_path / "a.parquet", texts), write_jsonl(tmp_path / "a.jsonl", texts)):
        out = tmp_path / source.suffix[1:]
        tokenize([str(source)], out, threads=2)
        np.testing.assert_array_equal(read_all(out), expected)


def test_folders_and_globs(tmp_path: Path) -> None:
    for name in ("b", "a", "sub/c"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [f"text of {name}"])
    (tmp_path / "in" / "notes.md").write_text("not an input")
    folder = tokenize([str(tmp_path / "in")], tmp_path / "folder")
    assert [source["file"] for source in folder["sources"]] == ["a.jsonl", "b.jsonl", "sub/c.jsonl"]
    pattern = tokenize([str(tmp_path / "in" / "*.jsonl")], tmp_path / "glob")
    assert [source["file"] for source in pattern["sources"]] == ["a.jsonl", "b.jsonl"]
    ordered = tokenize([str(tmp_path / "in" / f"{name}.jsonl") for name in "ba"], tmp_path / "ordered")
    assert [source["file"] for source in ordered["sources"]] == ["b.jsonl", "a.jsonl"]


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    source = str(write_parquet(tmp_path / "a.parquet", ["text"]))
    (tmp_path / "a.csv").write_text("text")
    numbers = str(tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"text": [1], "body": ["a"], "words": [["a"]]}), numbers)
    pq.write_table(pa.table({"text": [1]}), tmp_path / "only_numbers.parquet")
    cases: list[tuple[list[str], dict[str, Any], str]] = [
        ([str(tmp_path / "none.parquet")], {}, "none.parquet: no such file"),
        ([str(tmp_path / "*.arrow")], {}, "holds no input file"),
        ([str(tmp_path / "a.csv")], {}, "a.csv: unknown kind of file, expected .parquet"),
        ([source, source], {}, "given more than once"),
        ([source], {"column": "body"}, 'no column "body" holds one text a row; --column can be one of text$'),
        ([numbers], {}, 'no column "text" holds one text a row; --column can be one of body$'),
        ([str(tmp_path / "only_numbers.parquet")], {}, 'no column "text" holds one text a row; no column does$'),
        ([source], {"shard_tokens": 0}, "--shard-tokens 0: must be in 1"),
        ([source], {"shard_tokens": 2**31}, "--shard-tokens 2147483648: must be in"),
        ([source], {"part": (2, 2)}, "--part 2/2"),
        ([source], {"threads": 0}, "threads=0: must be at least 1"),
        ([source], {"memory": 10_000_000, "threads": 2}, "--memory 10000000: 2 threads need at least 301989888"),
        ([source], {"on_error": "ignore"}, "on_error='ignore': must be one of stop, skip"),
        ([source], {"format": "arrow"}, "format='arrow': must be one of shards, nanogpt"),
    ]
    for inputs, options, message in cases:
        with pytest.raises(ValueError, match=message.replace(".", r"\.").replace("*", r"\*")):
            tokenize(inputs, tmp_path / "out", **options)
    tokenize([source], tmp_path / "out")
    with pytest.raises(ValueError, match="holds a complete corpus; delete it or choose another --out"):
        tokenize([source], tmp_path / "out")


def test_parts_are_the_whole_in_order(tmp_path: Path, sample_texts: list[str]) -> None:
    from rust_data.merge import main as merge_main
    from rust_data.merge import merge

    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in" / "a.parquet", sample_texts[:300])
    write_jsonl(tmp_path / "in" / "b.jsonl", sample_texts[300:340])
    inputs = [str(tmp_path / "in")]
    tokenize(inputs, tmp_path / "whole", shard_tokens=30_000)
    parts = []
    for index in range(3):
        parts.append(tmp_path / f"part{index}")
        tokenize(inputs, parts[-1], shard_tokens=30_000, part=(index, 3))
    merged = merge(tmp_path / "merged", parts)
    np.testing.assert_array_equal(read_all(tmp_path / "merged"), read_all(tmp_path / "whole"))
    assert [source["documents"] for source in merged["sources"]] == [300, 40]
    for shard in merged["splits"]["train"]["shards"]:
        check_shard(tmp_path / "merged" / shard["file"], shard)
    assert merge_main([str(tmp_path / "merged"), *map(str, parts)]) == 1
    with pytest.raises(ValueError, match="given more than once"):
        merge(tmp_path / "twice", [*parts, parts[0]])
    for wrong, message in (
        ([parts[0], parts[2]], "part 1/3 is missing: give all 3"),
        ([parts[1], parts[0], parts[2]], r"part1: part 1/3 in place 0 of 3; give the parts in their order"),
        ([*parts, tmp_path / "whole"], "whole: part 0/1 in place 3 of 3"),
    ):
        with pytest.raises(ValueError, match=message):
            merge(tmp_path / "wrong", wrong)
    assert not (tmp_path / "wrong").exists()
    # whole corpora are joined as they are given
    both = merge(tmp_path / "both", [tmp_path / "whole", tmp_path / "merged"])
    assert both["splits"]["train"]["tokens"] == 2 * merged["splits"]["train"]["tokens"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train_000000.bin").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"train_000000\.bin is there already"):
        merge(tmp_path / "mine", parts)
    assert (tmp_path / "mine" / "train_000000.bin").read_bytes() == b"mine"


def test_seed_permutes_whole_documents(tmp_path: Path) -> None:
    texts = [f"{i} apples and {i} pears" for i in range(400)]
    source = str(write_parquet(tmp_path / "a.parquet", texts))

    def order(name: str, **options: Any) -> list[str]:
        tokenize([source], tmp_path / name, shard_tokens=777, **options)
        tokens = read_all(tmp_path / name)
        parts = np.split(tokens, np.flatnonzero(tokens == EOT) + 1)[:-1]
        tokenizer = Tokenizer("gpt2")
        return [tokenizer.decode(part[:-1]) for part in parts]

    plain = order("plain")
    shuffled = order("one", seed=1)
    assert plain == texts
    assert shuffled != texts
    assert sorted(shuffled) == sorted(texts)
    assert order("same", seed=1, threads=3) == shuffled
    assert order("other", seed=2) != shuffled
    assert not list((tmp_path / "one").glob("*.tmp"))
    # neighbours in the corpus do not stay neighbours
    places = {text: place for place, text in enumerate(shuffled)}
    together = sum(abs(places[a] - places[b]) == 1 for a, b in pairwise(texts))
    assert together < 12


def test_nanogpt_form(tmp_path: Path, sample_texts: list[str]) -> None:
    source = str(write_parquet(tmp_path / "a.parquet", sample_texts[:100]))
    tokenize([source], tmp_path / "shards", val_tokens=3000, shard_tokens=20_000)
    tokenize([source], tmp_path / "flat", val_tokens=3000, shard_tokens=20_000, format="nanogpt")
    for split in ("train", "val"):
        flat = np.memmap(tmp_path / "flat" / f"{split}.bin", dtype=np.uint16, mode="r")
        np.testing.assert_array_equal(flat, read_split(tmp_path / "shards", split))
    assert sorted(path.name for path in (tmp_path / "flat").iterdir()) == ["meta.json", "train.bin", "val.bin"]
    with pytest.raises(ValueError, match="holds a complete corpus; delete it or choose another --out"):
        tokenize([source], tmp_path / "flat")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(write_jsonl(tmp_path / "a.jsonl", ["one two", "three"]))
    out = tmp_path / "out"
    assert main([source, "--out", str(out), "--val-tokens", "0", "--dry-run"]) == 0
    assert "1 files" in capsys.readouterr().out
    assert not out.exists()
    assert main([source, "--out", str(out), "--val-tokens", "3", "--shard-tokens", "1K", "--quiet"]) == 0
    assert "train: 2 tokens, 1 documents, 1 shards" in capsys.readouterr().out
    assert main([source, "--out", str(out), "--quiet"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(SystemExit):
        main([source, "--out", str(out), "--shard-tokens", "many"])
    assert "'many': expected a whole number" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([source, "--out", str(out), "--part", "3/3"])


def test_options_without_effect_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one two three")
    words = [str(tmp_path / "a.txt"), "--val-tokens", "0", "--quiet", "--seed", "5", "--column", "body"]
    assert main([*words, "--out", str(tmp_path / "out"), "--format", "nanogpt", "--shard-tokens", "1K"]) == 0
    assert [line.partition(" has")[0] for line in capsys.readouterr().err.splitlines()] == [
        "note: --column",
        "note: --shard-tokens",
        "note: --seed",
    ]
    (tmp_path / "b.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    assert main([str(tmp_path / "b.jsonl"), *words[1:], "--out", str(tmp_path / "more"), "--shard-tokens", "1K"]) == 0
    assert not capsys.readouterr().err
    assert main([str(tmp_path / "a.txt"), "--column", "body", "--out", str(tmp_path / "dry"), "--dry-run"]) == 0
    assert "--column has no effect" in capsys.readouterr().err
