"""The command line on checkpoints and on folders of transformers, without a run.

Covers generate/checkpoint.py and generate/transformers.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rust_data import Tokenizer
from saf_titan.generate.__main__ import main
from saf_titan.generate.checkpoint import find_source, load_for_generation
from tests.generate.run_folder import GPT, T, half_static, write_run, write_step
from tests.hf.test_commands import made, write_model

__all__ = ["made"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an ordinary checkpoint of step 3 and a newer one with static heads."""
    folder = write_run(tmp_path_factory.mktemp("generate"))
    write_step(folder, 3, None)
    write_step(folder, 10, half_static())
    return folder


def written(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> tuple[str, str]:
    """What a command wrote to standard output and to standard error."""
    assert main([str(word) for word in words]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


@torch.no_grad()
def likeliest(folder: Path, prompt: str, count: int, *, extrapolate: bool = False) -> str:
    """What a model writes at temperature 0, by whole forwards. One id is one byte; see `write_tokenizer`."""
    source = find_source(folder)
    model = load_for_generation(source, length=len(prompt) + count, extrapolate=extrapolate)
    tokenizer = Tokenizer(Path(source.run.data.path) / "tokenizer.json")
    ids = tokenizer.encode(prompt).tolist() or [tokenizer.eot]
    new: list[int] = []
    for _ in range(count):
        token = int(model(torch.tensor([ids + new]))[0, -1, : tokenizer.vocab_size].argmax())
        if token == tokenizer.eot:
            break
        new.append(token)
    return prompt + tokenizer.decode(new) + "\n"


GREEDY = ("--temperature", 0, "--max-new-tokens", 12)


def test_a_run_stands_for_its_newest_checkpoint(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = written(capsys, run_folder, "--prompt", "Hello", *GREEDY)
    assert out == likeliest(run_folder, "Hello", 12)
    assert f"{run_folder / 'checkpoint/step-10'}: 3 static heads" in err
    out, err = written(capsys, run_folder / "checkpoint/step-3", "--prompt", "Hello", *GREEDY)
    assert out == likeliest(run_folder / "checkpoint/step-3", "Hello", 12)
    assert "step-3: 0 static heads" in err


def test_the_folder_of_checkpoints_stands_for_the_newest(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = written(capsys, run_folder / "checkpoint", "--prompt", "Hello", *GREEDY)
    assert out == likeliest(run_folder, "Hello", 12)
    assert f"{run_folder / 'checkpoint/step-10'}: 3 static heads" in err


def test_prompts_of_a_file_in_batches(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("Hello\n\na longer prompt\n")
    out, _ = written(capsys, run_folder, "--prompts", file, "--batch-size", 2, *GREEDY)
    texts = [likeliest(run_folder, prompt, 12) for prompt in ("Hello", "", "a longer prompt")]
    # as some editors write a text
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert written(capsys, run_folder, "--prompts", tmp_path / "marked.txt", *GREEDY)[0] == out
    assert out == "".join(f"--- prompt {n} of 3\n{text}" for n, text in enumerate(texts, start=1))
    words = (run_folder, "--prompts", file, "--max-new-tokens", 12)
    sampled = [written(capsys, *words, "--batch-size", size, "--seed", 4)[0] for size in (1, 3)]
    assert sampled[0] == sampled[1]
    other, _ = written(capsys, *words, "--seed", 5)
    assert other != sampled[0]


def test_a_growing_text_is_the_same_text(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (run_folder, "--prompt", "Zürich", "--max-new-tokens", 20, "--top-k", 200, "--top-p", 0.99, "--seed", 1)
    assert written(capsys, *words, "--stream")[0] == written(capsys, *words)[0]


def test_the_planner_explains_itself(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = written(capsys, run_folder, "--prompt", "Hello", *GREEDY, "--explain")
    assert err.count("values: the cache of 16 values is not larger than a state") == 3
    _, err = written(capsys, run_folder / "checkpoint/step-3", "--prompt", "Hello", *GREEDY, "--explain")
    assert f"note: --explain has no effect on {run_folder / 'checkpoint/step-3'}, which has no static heads" in err


def test_beyond_the_patterns(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (run_folder, "--prompt", "Hello", "--temperature", 0, "--max-new-tokens", T + 20)
    out, err = written(capsys, *words, status=2)
    assert not out
    assert f"{T + 24} tokens are more than the model is defined for" in err
    assert "; shorten the prompt, lower --max-new-tokens, or give --extrapolate" in err
    (run_folder / "prompts.txt").write_text("short\n" + "long" * T + "\nshort\n")
    assert (
        "shorten prompt 2 of 3, lower"
        in written(capsys, run_folder, "--prompts", run_folder / "prompts.txt", status=2)[1]
    )
    out, err = written(capsys, *words, "--extrapolate")
    assert f"beyond the {T} tokens of training" in err
    assert out == likeliest(run_folder, "Hello", T + 20, extrapolate=True)


def test_a_text_as_long_as_the_patterns(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = written(capsys, run_folder, "--prompt", "Hello", "--temperature", 0, "--max-new-tokens", T - 4)
    assert out == likeliest(run_folder, "Hello", T - 4)


def test_learned_positions_cannot_be_extrapolated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, f'{GPT}, position = "learned"')
    write_step(folder, 1, half_static())
    words = (folder, "--prompt", "Hello", "--temperature", 0)
    assert written(capsys, *words, "--max-new-tokens", 9)[0] == likeliest(folder, "Hello", 9)
    _, err = written(capsys, *words, "--max-new-tokens", T, "--extrapolate", status=2)
    assert f"it has {T} learned positions; shorten the prompt, lower --max-new-tokens\n" in err


def test_a_decoder_of_torchtitan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one fused matrix: the same weights serve, as separate projections."""
    folder = write_run(tmp_path, 'family = "llama3", flavor = "debugmodel", fuse_qkv = true')
    write_step(folder, 1, None)
    out, _ = written(capsys, folder, "--prompt", "Hello", *GREEDY, "--dtype", "float32")
    assert out == likeliest(folder, "Hello", 12)


def test_mistakes_are_one_line(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("Zürich".encode("latin-1"))
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "lone").mkdir()
    shutil.copytree(run_folder / "checkpoint/step-3", tmp_path / "lone/step-3")
    for words, message in (
        ([tmp_path / "none", "--prompt", "a"], "does not exist"),
        ([tmp_path, "--prompt", "a"], "is neither a checkpoint"),
        ([tmp_path / "lone", "--prompt", "a"], "config.toml is missing: give the TOML file of the run"),
        ([tmp_path / "lone/step-3", "--prompt", "a"], "config.toml is missing: give the TOML file of the run"),
        ([run_folder], "one of the arguments --prompt --prompts is required"),
        ([run_folder, "--prompts", tmp_path / "empty.txt"], "is empty"),
        ([run_folder, "--prompts", tmp_path / "latin.txt"], "is not UTF-8 text"),
        ([run_folder, "--prompts", tmp_path / "tow.txt"], f"did you mean {tmp_path / 'two.txt'}?"),
        ([run_folder, "--prompts", tmp_path / "lone"], "lone is a folder: give a UTF-8 text with one prompt per line"),
        ([run_folder, "--prompts", tmp_path / "two.txt", "--stream"], "there are 2 prompts"),
        ([run_folder, "--prompt", "a", "--temperature", -1], "temperature = -1"),
        ([run_folder, "--prompt", "a", "--top-p", 0], "top_p = 0"),
        ([run_folder, "--prompt", "a", "--max-new-tokens", 0], "--max-new-tokens"),
    ):
        out, err = written(capsys, *words, status=2)
        assert message in err, err
        assert err.count("\n") == 1
        assert not out


def test_options_without_effect_are_said(run_folder: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--prompt", "a", "--max-new-tokens", 1, "--temperature", 0, "--top-k", 3, "--seed", 4, "--batch-size", 2)
    for folder, reason in ((run_folder, "on a single prompt"), (made / "model", "writes one text after the other")):
        lines = written(capsys, folder, *words)[1].splitlines()
        assert lines[0] == "note: --top-k, --seed have no effect at --temperature 0, which takes the likeliest token"
        assert lines[1].startswith("note: --batch-size has no effect")
        assert reason in lines[1]


def test_a_folder_without_a_whole_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path)
    assert "holds no complete checkpoint" in written(capsys, folder, "--prompt", "a", status=2)[1]


def test_folders_of_transformers(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "the quick"
    for name in ("model", "frozen"):
        words = (made / name, "--prompt", prompt, "--max-new-tokens", 5)
        out, err = written(capsys, *words, "--temperature", 0)
        assert out.startswith(prompt)
        assert ("static heads" in err) == (name == "frozen")
        sampled = [written(capsys, *words, "--seed", seed, "--top-k", 20)[0] for seed in (1, 1, 2)]
        assert sampled[0] == sampled[1] != sampled[2]
    # so low a temperature is none, for both kinds of models
    assert written(capsys, *words, "--temperature", 1e-300)[0] == out
    streamed, _ = written(capsys, *words, "--temperature", 0, "--stream")
    assert streamed.split() == out.split()


def test_settings_of_a_folder_do_not_choose_the_tokens(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--temperature 0 is the likeliest token, also where the folder asks for beams and penalties."""
    words = ("--prompt", "the quick", "--temperature", 0, "--max-new-tokens", 7)
    plain, _ = written(capsys, made / "frozen", *words)
    folder = shutil.copytree(made / "frozen", tmp_path / "frozen")
    settings = {"num_beams": 3, "repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "eos_token_id": [2, 1]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    # and with no token for padding, and several that end a text
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    out, _ = written(capsys, folder, *words)
    assert out == plain
    assert len(plain.split()) > 5


def test_the_space_before_the_first_new_word_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokenizers like sentencepiece drop it from the beginning of a text."""
    folder = write_model(tmp_path / "pieces")
    pieces = HfTokenizer(models.WordLevel({f"\u2581w{n}": n for n in range(50)}, unk_token="\u2581w0"))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    PreTrainedTokenizerFast(tokenizer_object=pieces).save_pretrained(folder)
    for options in ((), ("--stream",)):
        out, _ = written(capsys, folder, "--prompt", "w7 w8", *GREEDY, *options)
        assert out.startswith("w7 w8 w")
        assert len(out.split()) > 3


def test_what_a_folder_of_transformers_cannot_do(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = write_model(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    damaged, lines = tmp_path / "bare.gguf", tmp_path / "lines.txt"
    damaged.write_bytes(b"GGUF" + bytes(12))
    lines.write_text("a\n\nb\n")
    long = tmp_path / "long.txt"
    long.write_text("a\n" + "fox " * 99 + "\nb\n")
    for words, message in (
        ([made / "frozen", "--prompt", "fox", "--max-new-tokens", 15], "fitted to sequences of 16 tokens"),
        ([made / "frozen", "--prompt", "fox", "--extrapolate"], "--extrapolate is for checkpoints of this trainer"),
        ([made / "frozen", "--prompt", "fox", "--explain"], "--explain is for checkpoints of this trainer"),
        ([bare, "--prompt", "fox"], "has no tokenizer"),
        ([damaged, "--prompt", "fox"], "bare.gguf has no tokenizer that transformers can read (error: "),
        ([damaged, "--prompt", "fox"], "the file may be damaged, copy it again"),
        ([made / "model", "--prompts", long], "shorten prompt 2 of 3 or lower --max-new-tokens"),
        ([made / "model", "--prompts", lines], "prompt 2 of 3 is empty, and the tokenizer of this model puts no token"),
    ):
        out, err = written(capsys, *words, status=2)
        assert message in err, err
        assert not out
