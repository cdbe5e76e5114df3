"""datatrove: documents of its readers to shards, the same for every number of tasks.

Covers `rust_data/parts.py` too.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader, ParquetReader

from rust_data import inspect
from rust_data.manifest import read_manifest
from rust_data.merge import merge
from rust_data.parts import PartWriter, join
from rust_data.pipeline import JoinShards, TokenizeToShards
from rust_data.tokenize import tokenize
from rust_data.tokenizer import Tokenizer
from tests.rust_data.conftest import read_split, shard_bytes, tokenizer_json, write_jsonl, write_parquet

SIZES = {"shard_tokens": 7_001, "val_tokens": 5_000}
NUM_FILES = 6


def upper(data: Any, rank: int = 0, world_size: int = 1) -> Any:
    """A step between the reader and the tokenizer, which also drops documents."""
    for document in data:
        if len(document.text) % 5:
            document.text = document.text.upper()
            yield document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sample_texts: list[str]) -> Path:
    """Six files of documents of 20 to 4000 characters in json and in parquet, and the parts of four tasks."""
    folder = tmp_path_factory.mktemp("texts")
    texts = [text[: 20 + 131 * n % 4000] for n, text in enumerate(sample_texts[:120])]
    texts[7] = "a <|endoftext|> b"
    for kind in ("json", "parquet"):
        (folder / kind).mkdir()
    for number in range(NUM_FILES):
        write_jsonl(folder / f"json/{number}.jsonl", texts[number::NUM_FILES])
        write_parquet(folder / f"parquet/{number}.parquet", texts[number::NUM_FILES])
    steps = [JsonlReader(str(folder / "json")), TokenizeToShards(folder / "parts", shard_tokens=3_000)]
    # tasks in processes of their own
    LocalPipelineExecutor(steps, tasks=4, workers=2, logging_dir=str(folder / "logs")).run()
    return folder


def run(steps: list[Any], logs: Path, tasks: int = 1) -> None:
    LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=str(logs)).run()


@pytest.mark.parametrize("val_tokens", [5_000, 100, 0])
def test_four_tasks_give_the_bytes_of_one_job(val_tokens: int, folder: Path, tmp_path: Path) -> None:
    """Also where the split ends inside a document."""
    sizes = SIZES | {"val_tokens": val_tokens}
    run([JoinShards(folder / "parts", tmp_path / "corpus", **sizes)], tmp_path / "logs")
    whole = tokenize(str(folder / "json"), tmp_path / "whole", **sizes)
    assert shard_bytes(tmp_path / "corpus") == shard_bytes(tmp_path / "whole")
    manifest = read_manifest(tmp_path / "corpus")
    assert manifest["splits"] == whole["splits"]
    assert len(manifest["splits"]["train"]["shards"]) > 2
    for name in ("tokenizer", "dtype", "seed", "shard_tokens", "part", "format", "version"):
        assert manifest[name] == whole[name]
    assert [source["documents"] for source in manifest["sources"]] == [20] * NUM_FILES
    assert [Path(source["file"]).name for source in manifest["sources"]] == [f"{n}.jsonl" for n in range(NUM_FILES)]
    assert inspect.main([str(tmp_path / "corpus")]) == 0


@pytest.mark.parametrize("tasks", [1, 3, 9])
def test_another_reader_and_steps_between(tasks: int, folder: Path, tmp_path: Path) -> None:
    """More tasks than files as well: some have nothing to do."""
    reader = ParquetReader(str(folder / "parquet"), batch_size=7)
    run([reader, upper, TokenizeToShards(tmp_path / "parts")], tmp_path / "logs", tasks)
    run([JoinShards(tmp_path / "parts", tmp_path / "corpus", **SIZES)], tmp_path / "join")
    texts = [document.text for document in upper(ParquetReader(str(folder / "parquet")).run())]
    (tmp_path / "plain").mkdir()
    write_jsonl(tmp_path / "plain/all.jsonl", texts)
    tokenize(str(tmp_path / "plain"), tmp_path / "whole", **SIZES)
    assert shard_bytes(tmp_path / "corpus") == shard_bytes(tmp_path / "whole")
    stats = json.loads((tmp_path / "join/stats/00000.json").read_text())
    assert stats[0]["stats"]["train_tokens"]["total"] == len(read_split(tmp_path / "corpus", "train"))


def test_documents_without_a_file_keep_the_order_of_the_tasks(tmp_path: Path, gpt2: Tokenizer) -> None:
    def documents(data: Any, rank: int = 0, world_size: int = 1) -> Any:
        for number in range(3):
            yield Document(text=f"rank {rank} number {number}", id=f"{rank}/{number}")

    run([documents, TokenizeToShards(tmp_path / "parts")], tmp_path / "logs", 3)
    join(tmp_path / "corpus", tmp_path / "parts", gpt2)
    text = gpt2.decode([id for id in read_split(tmp_path / "corpus", "train") if id != gpt2.eot])
    assert text == "".join(f"rank {rank} number {number}" for rank in range(3) for number in range(3))
    # the parts are corpora of their own, which `merge` takes as well
    merged = merge(tmp_path / "merged", sorted((tmp_path / "parts").iterdir()))
    assert read_split(tmp_path / "merged", "train").tolist() == read_split(tmp_path / "corpus", "train").tolist()
    assert "tokens" not in merged["sources"][0]


def test_a_task_that_runs_again_replaces_its_part(tmp_path: Path, gpt2: Tokenizer) -> None:
    def write(texts: list[str], *, finish: bool) -> Path:
        part = PartWriter(tmp_path / "parts", (0, 1), gpt2, shard_tokens=100)
        for text in texts:
            part.add(text * 600)
        if finish:
            part.finish()
        part.close()
        return part.place

    place = write(["a few words, "], finish=True)
    assert len(shard_bytes(place)) > 10
    before = shard_bytes(place)
    write(["other words, "], finish=False)
    assert shard_bytes(place) == before
    write(["only these. "], finish=True)
    # in memory until it is encoded, behind the end of the shards that a killed task left
    fresh = PartWriter(tmp_path / "other", (0, 1), gpt2, shard_tokens=100)
    fresh.add("only these. " * 600)
    fresh.finish()
    assert shard_bytes(place) == shard_bytes(fresh.place)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["part-00000-of-00001"]


def test_an_earlier_part_does_not_stand_for_a_task_that_was_stopped(tmp_path: Path, gpt2: Tokenizer) -> None:
    """Its documents may be others."""

    def write(number: int, text: str, *, finish: bool = True) -> None:
        part = PartWriter(tmp_path / "parts", (number, 2), gpt2, shard_tokens=100)
        part.add(text)
        if finish:
            part.finish()
        part.close()

    for number in range(2):
        write(number, "old")
    write(0, "new")
    write(1, "new", finish=False)
    with pytest.raises(ValueError, match=r"part-00001-of-00002\.tmp: the task of this part is still running or"):
        join(tmp_path / "corpus", tmp_path / "parts", gpt2)
    assert not (tmp_path / "corpus").exists()
    write(1, "new")
    join(tmp_path / "corpus", tmp_path / "parts", gpt2)
    assert gpt2.decode([id for id in read_split(tmp_path / "corpus", "train") if id != gpt2.eot]) == "newnew"


def test_files_in_folders_are_in_the_order_of_one_job(tmp_path: Path, gpt2: Tokenizer, sample_texts: list[str]) -> None:
    """A folder comes before another whose name goes on from its own, whatever the next letter."""
    for number, name in enumerate(["a/1", "a/b/1", "a-b/1", "a b/1", "a.b/1", "z"]):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / f"texts/{name}.jsonl", sample_texts[number : number + 1])
    reader = JsonlReader(str(tmp_path / "texts"), recursive=True)
    run([reader, TokenizeToShards(tmp_path / "parts")], tmp_path / "logs", 2)
    joined = join(tmp_path / "corpus", tmp_path / "parts", gpt2)
    whole = tokenize(str(tmp_path / "texts"), tmp_path / "whole")
    assert shard_bytes(tmp_path / "corpus") == shard_bytes(tmp_path / "whole")
    assert [Path(source["file"]).name for source in joined["sources"]] == [
        Path(source["file"]).name for source in whole["sources"]
    ]


def test_two_tasks_do_not_write_one_part(tmp_path: Path, gpt2: Tokenizer) -> None:
    first = PartWriter(tmp_path, (1, 2), gpt2, shard_tokens=100)
    with pytest.raises(ValueError, match="part-00001-of-00002: another run is writing here"):
        PartWriter(tmp_path, (1, 2), gpt2, shard_tokens=100)
    first.close()
    PartWriter(tmp_path, (1, 2), gpt2, shard_tokens=100).close()


def test_a_document_that_cannot_be_encoded_is_named(tmp_path: Path, gpt2: Tokenizer) -> None:
    step = TokenizeToShards(tmp_path / "parts")
    bad: Any = None
    documents = [Document(text="fine", id="first"), Document(text=bad, id="web/7")]
    with pytest.raises(ValueError, match="document web/7: its text is NoneType, expected str"):
        step.run(documents)

    class Picky(Tokenizer):
        """As a pattern may, it gives up on some texts."""

        def encode_batch(self, texts: Any, threads: int | None = None) -> Any:
            if any("bad" in text for text in texts):
                raise ValueError("gave up")
            return super().encode_batch(texts, threads)

        def encode(self, text: str) -> Any:
            return self.encode_batch([text])[0]

    part = PartWriter(tmp_path / "parts", (1, 2), Picky(), shard_tokens=100)
    for text in ("good", "a bad one", "bad"):
        part.add(text, name=f"the {text}")
    with pytest.raises(ValueError, match="document the a bad one: gave up"):
        part.finish()
    part.close()
    assert not list((tmp_path / "parts").glob("*/manifest.json"))


def test_parts_that_are_not_those_of_one_job(folder: Path, tmp_path: Path, gpt2: Tokenizer) -> None:
    def refused(message: str, change: Any = lambda parts: None, **settings: Any) -> None:
        shutil.rmtree(tmp_path / "parts", ignore_errors=True)
        shutil.copytree(folder / "parts", tmp_path / "parts")
        change(tmp_path / "parts")
        with pytest.raises(ValueError, match=message):
            join(tmp_path / "corpus", tmp_path / "parts", **{"tokenizer": gpt2} | settings)
        assert not (tmp_path / "corpus").exists()

    def edit(name: str, value: Any) -> Any:
        def change(parts: Path) -> None:
            file = parts / "part-00001-of-00004/manifest.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))

        return change

    def flip(parts: Path) -> None:
        shard = parts / "part-00002-of-00004/train_000001.bin"
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)

    root = tokenizer_json(gpt2)
    root["model"]["merges"] = root["model"]["merges"][:-1]
    root["model"]["vocab"] = {token: id for token, id in root["model"]["vocab"].items() if id != 50255}
    (tmp_path / "tokenizer.json").write_text(json.dumps(root))
    refused("holds no parts", lambda parts: [shutil.rmtree(part) for part in parts.iterdir()])
    refused("part 2/4 is missing: give all 4", lambda parts: shutil.rmtree(parts / "part-00002-of-00004"))
    refused(
        "of 4 and of 8", lambda parts: shutil.copytree(parts / "part-00002-of-00004", parts / "part-00007-of-00008")
    )
    refused("part-00001-of-00004: dtype is uint32", edit("dtype", "uint32"))
    refused("not written by a pipeline; join it with rust_data.merge", edit("sources", []))
    refused("manifest.json: missing", lambda parts: (parts / "part-00003-of-00004/manifest.json").unlink())
    refused("train_000001.bin: changed since it was written", flip)
    refused("train_000001.bin: missing", lambda parts: (parts / "part-00002-of-00004/train_000001.bin").unlink())
    refused("takes the whole corpus", val_tokens=10**9)
    refused("shard_tokens=0", shard_tokens=0)
    refused("the parts were written with tokenizer gpt2", tokenizer=Tokenizer(tmp_path / "tokenizer.json"))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/train_000000.bin").write_bytes(b"mine")
    with pytest.raises(ValueError, match="train_000000"):
        join(tmp_path / "corpus", tmp_path / "parts", gpt2)
    assert (tmp_path / "corpus/train_000000.bin").read_bytes() == b"mine"


def test_settings_are_checked_before_a_task_is_queued(tmp_path: Path) -> None:
    for settings, message in [
        ({"tokenizer": "gpt9"}, "tokenizer 'gpt9': expected one of"),
        ({"shard_tokens": 2**31}, "shard_tokens=2147483648"),
    ]:
        for step in (lambda s: TokenizeToShards(tmp_path, **s), lambda s: JoinShards(tmp_path, tmp_path, **s)):
            with pytest.raises(ValueError, match=message):
                step(settings)
    with pytest.raises(ValueError, match="JoinShards: 2 tasks"):
        JoinShards(tmp_path, tmp_path).run(None, 0, 2)
