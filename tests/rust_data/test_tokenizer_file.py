"""A tokenizer.json stays with the shards that were made with it: whole runs, resumed ones, parts and pipelines."""

import json
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from rust_data.merge import merge
from rust_data.parts import PartWriter, join
from rust_data.tokenize import main, tokenize
from rust_data.tokenizer import Tokenizer
from tests.generate.run_folder import write_tokenizer
from tests.rust_data.conftest import write_jsonl

TEXTS = ["one two", "three four five", "six", "seven eight"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "mine")
    # under another name, in another form: what is kept are its bytes
    path = tmp_path / "mine/bytes.json"
    path.write_text(json.dumps(json.loads((tmp_path / "mine/tokenizer.json").read_text())))
    return path


@pytest.mark.parametrize("form", ["shards", "nanogpt"])
def test_it_is_copied_beside_the_shards(form: str, file: Path, tmp_path: Path) -> None:
    source, out = str(write_jsonl(tmp_path / "a.jsonl", TEXTS)), tmp_path / "out"
    manifest = tokenize(source, out, tokenizer=file, format=form)
    kept = out / "tokenizer.json"
    assert kept.read_bytes() == file.read_bytes()
    assert Tokenizer(kept).sha256 == manifest["tokenizer"]["sha256"]
    # killed between the manifest and the copy
    kept.unlink()
    tokenize(source, out, tokenizer=file, format=form, resume=True)
    assert kept.read_bytes() == file.read_bytes()
    # and once more with the copy itself
    tokenize(source, out, tokenizer=kept, format=form, resume=True)
    assert kept.read_bytes() == file.read_bytes()


def test_bytes_bring_their_file(tmp_path: Path) -> None:
    tokenize(str(write_jsonl(tmp_path / "a.jsonl", TEXTS)), tmp_path / "out", tokenizer="bytes")
    assert Tokenizer(str(tmp_path / "out/tokenizer.json")).sha256 == Tokenizer("bytes").sha256


def test_a_tokenizer_by_name_has_no_file(tmp_path: Path) -> None:
    tokenize(str(write_jsonl(tmp_path / "a.jsonl", TEXTS)), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "train_000000.bin"]


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("content", ["other", "{"])
def test_the_file_of_another_tokenizer_is_not_overwritten(
    content: str, dry_run: bool, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokenizer(tmp_path / "out", sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True))
    if content != "other":
        (tmp_path / "out/tokenizer.json").write_text(content)
    before = (tmp_path / "out/tokenizer.json").read_bytes()
    source = str(write_jsonl(tmp_path / "a.jsonl", TEXTS))
    arguments = [source, "--out", str(tmp_path / "out"), "--tokenizer", str(file), "--val-tokens", "0"]
    assert main([*arguments, *(["--dry-run"] if dry_run else [])]) == 1
    assert "out/tokenizer.json: is another tokenizer than " in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokenizer.json"]
    assert (tmp_path / "out/tokenizer.json").read_bytes() == before


def test_the_parts_of_a_job_array_hand_it_on(file: Path, tmp_path: Path) -> None:
    source = str(write_jsonl(tmp_path / "a.jsonl", TEXTS * 30))
    parts = [tmp_path / f"part{index}" for index in range(2)]
    for index, part in enumerate(parts):
        tokenize(source, part, tokenizer=file, part=(index, 2))
        assert (part / "tokenizer.json").is_file()
    (parts[0] / "tokenizer.json").unlink()
    merge(tmp_path / "corpus", parts)
    assert (tmp_path / "corpus/tokenizer.json").read_bytes() == file.read_bytes()


def test_a_merge_that_fails_leaves_no_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize(str(write_jsonl(tmp_path / "a.jsonl", TEXTS)), tmp_path / "part", tokenizer=file)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rust_data.merge.write_manifest", full)
    with pytest.raises(OSError, match="No space left"):
        merge(tmp_path / "corpus", [tmp_path / "part"])
    assert not (tmp_path / "corpus").exists()


def test_the_tasks_of_a_pipeline_hand_it_on(file: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(file)
    for _ in range(2):
        part = PartWriter(tmp_path / "parts", (0, 1), tokenizer, shard_tokens=100)
        part.add("one two")
        part.finish()
    assert (part.place / "tokenizer.json").read_bytes() == file.read_bytes()
    join(tmp_path / "corpus", tmp_path / "parts", tokenizer)
    assert (tmp_path / "corpus/tokenizer.json").read_bytes() == file.read_bytes()
