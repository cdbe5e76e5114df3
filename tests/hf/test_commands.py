"""The command lines on a model folder: calibrate, select, perplexity, freeze, and what goes wrong.

Covers hf/arguments.py, hf/card.py, hf/identity.py and hf/task_commands.py too.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast, pipeline

import saf_titan.hf
from saf_titan.generate.__main__ import main as generate
from saf_titan.hf.__main__ import main
from saf_titan.hf.measure import text_loss
from saf_titan.hf.text import longest_text, require_length, text_windows
from saf_titan.saf.__main__ import main as saf
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.plan import StaticPlan
from saf_titan.saf.plan.settings import PlanSettings
from tests.hf.tiny import stock_model
from tests.warm.python import warm_python

LETTERS = ["<pad>", "<s>", "</s>", "<unk>"] + [chr(code) for code in range(97, 123)] + list(" .,")
TEXT = "the quick brown fox jumps over the lazy dog. " * 40


def write_model(folder: Path, model_type: str = "llama", **changes: Any) -> Path:
    stock_model(model_type, **changes).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({letter: n for n, letter in enumerate(LETTERS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an ordinary model, a text, statistics, a plan, and the frozen model."""
    folder = tmp_path_factory.mktemp("made")
    write_model(folder / "model", num_key_value_heads=4)
    (folder / "text.txt").write_text(TEXT)
    words = ["--text", str(folder / "text.txt"), "--sequences", "8", "--length", "16"]
    scores = ["--selector", "kl,output_error,gate_taylor"]
    assert main(["calibrate", str(folder / "model"), *words, *scores, "--out", str(folder / "stats")]) == 0
    options = ["--rate", "0.25", "--selector", "output_error", "--max-fit-kl", "9", "--out", str(folder / "plan")]
    assert saf(["select", str(folder / "stats"), *options]) == 0
    assert main(["freeze", str(folder / "model"), "--plan", str(folder / "plan"), "--out", str(folder / "frozen")]) == 0
    stock_model("llama").save_pretrained(folder / "frozen/bare")
    (folder / "empty").mkdir()
    (folder / "run").mkdir()
    (folder / "run/config.toml").touch()
    cut = write_model(folder / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:1000])
    settings = json.loads((folder / "cut/config.json").read_text())
    (write_model(folder / "words") / "tokenizer.json").write_text("{}")
    write_model(folder / "list").joinpath("config.json").write_text("[]")
    unknown = {"vocab_size": 51}, {"num_hidden_layers": 3}, {"model_type": "nosuch"}
    for name, change in zip(("shape", "more", "kind"), unknown, strict=True):
        config = write_model(folder / name) / "config.json"
        config.write_text(json.dumps(settings | change))
    return folder


def test_weights_without_a_place_are_said(made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = write_model(tmp_path / "less") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 1}))
    words = ["--text", str(made / "text.txt"), "--length", "16"]
    assert main(["calibrate", str(tmp_path / "less"), *words, "--out", str(tmp_path / "stats")]) == 0
    assert [record.getMessage() for record in caplog.records if record.name.startswith("transformers")] == [
        f"{tmp_path / 'less'} has weights that SAFLlamaForCausalLM does not use: "
        "model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight, "
        "model.layers.1.mlp.gate_proj.weight, model.layers.1.mlp.up_proj.weight, "
        "model.layers.1.post_attention_layernorm.weight and 8 more"
    ]


def test_a_frozen_model_without_a_tokenizer_is_said(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stock_model("llama", num_key_value_heads=4).save_pretrained(tmp_path / "bare")
    words = ["--plan", str(made / "plan"), "--out", str(tmp_path / "out")]
    assert main(["freeze", str(tmp_path / "bare"), *words]) == 0
    assert f"without a tokenizer: {tmp_path / 'bare'} has no tokenizer" in capsys.readouterr().out


def test_the_statistics_say_where_they_come_from(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibration = Calibration.load(made / "stats")
    assert calibration.record.source == str(made / "text.txt")
    assert calibration.record.positions[:2] == (0, 224)
    assert set(calibration.extra_scores) >= {"output_error", "redundancy", "gate_taylor"}
    assert saf(["explain", str(made / "stats")]) == 0
    assert saf(["fit", str(made / "stats")]) == 0
    assert saf(["show", str(made / "frozen/saf_plan.safetensors"), "--stats", str(made / "stats")]) == 0
    assert "L1" in capsys.readouterr().out


def test_the_frozen_folder(made: Path) -> None:
    plan = StaticPlan.load(made / "plan")
    assert StaticPlan.load(made / "frozen/saf_plan.safetensors").digest == plan.digest
    assert json.loads((made / "frozen/config.json").read_text())["model_type"] == "saf_titan_llama"
    weights, before = (load_file(made / name / "model.safetensors") for name in ("frozen", "model"))
    assert list(weights) == list(before)
    for head in plan.heads:
        rows = slice(head.head * 8, head.head * 8 + 8)
        for kind in "qk":
            for part in ("weight", "bias"):
                assert not weights[f"model.layers.{head.layer}.self_attn.{kind}_proj.{part}"][rows].any()


def test_a_text_that_nothing_reads_is_said(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["freeze", str(made / "model"), "--plan", str(made / "plan"), "--out", str(tmp_path / "out")]
    assert main([*words, "--text", str(made / "text.txt"), "--length", "8"]) == 0
    assert "note: --text, --length have no effect without --compensate" in capsys.readouterr().err


def test_perplexity_compares_with_ordinary_attention(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--text", str(made / "text.txt")]
    assert main(["perplexity", str(made / "model"), *words, "--plan", str(made / "plan")]) == 0
    of_model = capsys.readouterr().out
    assert main(["perplexity", str(made / "frozen"), *words]) == 0
    of_frozen = capsys.readouterr().out
    model = saf_titan.hf.load(made / "model")
    tokens_NT = text_windows(made / "text.txt", made / "model", None, 16).tokens_NT
    ordinary = text_loss(model, tokens_NT)
    model.set_plan(StaticPlan.load(made / "plan"))
    static = text_loss(model, tokens_NT)
    assert f"ordinary attention  NLL {ordinary.nll:.5f}  perplexity {ordinary.perplexity:.3f}" in of_model
    assert f"2 static heads      NLL {static.nll:.5f}  perplexity {static.perplexity:.3f}" in of_model
    assert f"change {static.nll - ordinary.nll:+.5f} nat" in of_model
    assert f"NLL {static.nll:.5f}" in of_frozen
    # by definition
    logits = model(tokens_NT[:3]).logits[:, :-1].double().log_softmax(-1)
    expected = -logits.gather(2, tokens_NT[:3, 1:, None]).mean()
    assert text_loss(model, tokens_NT[:3]).nll == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("model_type", "kv_heads"), [("gpt2", 4), ("gpt_neox", 4), ("llama", 4), ("llama", 2), ("gemma3_text", 2)]
)
def test_compensation_brings_the_outputs_of_static_heads_nearer(
    model_type: str, kv_heads: int, made: Path, tmp_path: Path
) -> None:
    folder = write_model(
        tmp_path / "model", model_type, **{} if model_type.startswith("gpt") else {"num_key_value_heads": kv_heads}
    )
    words = ["--text", str(made / "text.txt"), "--sequences", "16", "--length", "16"]
    assert main(["calibrate", str(folder), *words, "--out", str(tmp_path / "stats")]) == 0
    options = ["--rate", "0.25", "--selector", "list", "--heads", "L1H0,L1H2", "--max-fit-kl", "9"]
    assert saf(["select", str(tmp_path / "stats"), *options, "--out", str(tmp_path / "plan")]) == 0
    plan = ["--plan", str(tmp_path / "plan")]
    assert main(["freeze", str(folder), *plan, "--out", str(tmp_path / "plain")]) == 0
    assert main(["freeze", str(folder), *plan, "--compensate", *words[:2], "--out", str(tmp_path / "compensated")]) == 0
    tokens_NT = text_windows(made / "text.txt", folder, 8, 16).tokens_NT
    target, plain, compensated = (
        saf_titan.hf.load(tmp_path / name)(tokens_NT).logits for name in ("model", "plain", "compensated")
    )
    assert not torch.equal(plain, compensated)
    assert (compensated - target).square().mean() < (plain - target).square().mean()


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gemma3_text", "olmo2"])
def test_output_error_is_the_change_of_the_stream_behind_any_norm(model_type: str, made: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", model_type)
    words = ["--text", str(made / "text.txt"), "--sequences", "6", "--length", "16"]
    stats = str(tmp_path / "stats")
    assert main(["calibrate", str(folder), *words, "--selector", "output_error", "--out", stats]) == 0
    calibration = Calibration.load(stats)
    tokens_NT = text_windows(made / "text.txt", folder, 6, 16).tokens_NT
    model = saf_titan.hf.load(folder).eval()

    def stream_behind_attention(layer: int) -> torch.Tensor:
        """The stream that the feed-forward part of a layer reads, before the norm of that part."""
        seen: list[torch.Tensor] = []
        name = "post_attention_layernorm" if model_type == "llama" else "pre_feedforward_layernorm"
        block = model.blocks[layer]
        watched = getattr(block, name, None) or block.mlp
        hook = watched.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
        model(tokens_NT)
        hook.remove()
        return seen[0].double()

    for layer, head in ((0, 1), (1, 2)):
        before = stream_behind_attention(layer)
        settings = PlanSettings(selector="list", heads=(f"L{layer}H{head}",), rate=1 / 8, max_fit_kl=99.0)
        model.set_plan(make_plan(calibration, settings))
        change = (stream_behind_attention(layer) - before).norm() / before.norm()
        model.set_plan(None)
        score = calibration.extra_scores["output_error"][layer, head].item()
        assert score == pytest.approx(change.item(), rel=1e-2)


def test_windows_begin_as_the_texts_of_the_tokenizer_do(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    plain, behind = (text_windows(made / "text.txt", path, None, 16) for path in (made / "model", folder))
    assert (plain.opening, behind.opening) == ((), (1,))
    assert behind.tokens_NT.shape[1] == 16
    assert (behind.tokens_NT[:, 0] == 1).all()
    # the text itself is the same, in windows of one token less
    texts = behind.tokens_NT[:, 1:].flatten(), plain.tokens_NT.flatten()
    length = min(map(len, texts))
    assert torch.equal(texts[0][:length], texts[1][:length])
    words = [
        "calibrate",
        str(folder),
        "--text",
        str(made / "text.txt"),
        "--length",
        "16",
        "--out",
        str(tmp_path / "stats"),
    ]
    assert main(words) == 0
    assert "each of which begins with 1 as" in capsys.readouterr().out
    with pytest.raises(ValueError, match="but 1 tokens come before every text"):
        text_windows(made / "text.txt", folder, 2, 1)


def test_a_pipeline_writes_text(made: Path) -> None:
    write = pipeline("text-generation", model=str(made / "frozen"))
    texts = write(["the", "quick "], max_new_tokens=5, do_sample=False, batch_size=2)
    assert [text[0]["generated_text"].startswith(prompt) for text, prompt in zip(texts, ["t h", "q"], strict=True)]


def test_stock_transformers_refuses_by_a_name_that_leads_here(made: Path) -> None:
    code = f"""
from transformers import AutoModelForCausalLM, LlamaForCausalLM
for kind in (AutoModelForCausalLM, LlamaForCausalLM):
    try:
        kind.from_pretrained({str(made / "frozen")!r})
    except ValueError as error:
        print(str(error).splitlines()[0])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    by_type, by_class = result.stdout.splitlines()
    assert "saf_titan_llama" in by_type
    # a class that is named only warns of the type
    assert 'Specified `attn_implementation="saf_titan"` is not supported' in by_class
    # its advice is to upgrade; the folder says what helps
    card = (made / "frozen/README.md").read_text()
    assert "2 attention heads with fixed patterns" in card
    assert "`saf_titan_llama`, and no upgrade of\ntransformers changes that" in card
    loading = card.partition("```python\n")[2].partition("```")[0].replace('"frozen"', repr(str(made / "frozen")))
    subprocess.run([warm_python(), "-c", loading], check=True)


def test_a_card_that_is_there_stays(made: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    saf_titan.hf.load(made / "frozen").save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_the_length_of_a_model_is_asked_in_one_place(made: Path) -> None:
    model = saf_titan.hf.load(made / "model")
    assert longest_text(model) == 64
    model.set_plan(StaticPlan.load(made / "plan"))
    assert longest_text(model) == 16
    require_length(model, 16, remedy="")
    with pytest.raises(
        ValueError, match=r"17 tokens .* static heads are fitted to sequences of 16 tokens; ask for less"
    ):
        require_length(model, 17, remedy="ask for less")
    # a pruned head has no pattern, and so no length
    settings = PlanSettings(rate=0.25, content="prune", selector="random")
    model.set_plan(make_plan(Calibration.load(made / "stats"), settings))
    require_length(model, 64, remedy="")
    with pytest.raises(ValueError, match="positions for 64 tokens; ask for less"):
        require_length(model, 65, remedy="ask for less")


def test_statistics_of_another_length_than_the_plan(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--text", str(made / "text.txt"), "--sequences", "2"]
    out = ["--out", str(tmp_path / "stats")]
    assert main(["calibrate", str(made / "frozen"), *words, "--length", "12", *out]) == 0
    capsys.readouterr()
    stats = ["--stats", str(tmp_path / "stats"), "--out", str(tmp_path / "losses")]
    assert main(["replacement", str(made / "frozen"), *words, *stats]) == 2
    error = capsys.readouterr().err
    assert "fitted to sequences of 16 tokens, but the statistics are of 12: calibrate with sequences of 16" in error
    assert not (tmp_path / "losses").exists()


def test_a_tokenizer_of_another_model_is_said(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_model(tmp_path / "model", vocab_size=20))
    text = ["--text", str(made / "text.txt")]
    message = (
        f"the tokenizer of {model} gives the id {{}}, and the model knows 20: it is the tokenizer of another model"
    )
    for run, words, largest in (
        (main, ["calibrate", model, *text, "--length", "16", "--out", str(tmp_path / "stats")], LETTERS.index(".")),
        (generate, [model, "--prompt", "z", "--max-new-tokens", "2"], LETTERS.index("z")),
    ):
        assert run(words) == 2
        assert message.format(largest) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"vocab_size": 51}, "vocab_size is 50 there and 51 here"),
        ({"hidden_size": 48}, "dim is 32 there and 48 here"),
        ({"num_key_value_heads": 2}, "num_kv_heads is 4 there and 2 here"),
        ({"head_dim": 16}, "head_dim is 8 there and 16 here"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta is 10000.0 there and 500000.0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_files_of_a_model_of_the_same_heads_and_other_sizes_are_refused(
    changes: dict[str, Any], difference: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_model(tmp_path / "other", **{"num_key_value_heads": 4, **changes}))
    text = ["--text", str(made / "text.txt")]
    for words in (
        ["freeze", model, "--plan", str(made / "plan"), "--out", str(tmp_path / "out")],
        ["perplexity", model, "--plan", str(made / "plan"), *text],
        ["replacement", model, "--stats", str(made / "stats"), *text, "--out", str(tmp_path / "out")],
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert f"is of another model than {model}: {difference}" in error
        assert f"calibrate {model} itself" in error
        assert error.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_files_of_other_weights_and_of_earlier_versions_are_taken_and_said(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saf_titan.hf.load(made / "model")
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    model.save_pretrained(tmp_path / "trained")
    AutoTokenizer.from_pretrained(made / "model").save_pretrained(tmp_path / "trained")
    plan = StaticPlan.load(made / "plan")
    replace(plan, record=replace(plan.record, model=None)).save(tmp_path / "old")
    words = ["--text", str(made / "text.txt"), "--sequences", "2"]
    for folder, file, note in (
        (made / "model", made / "plan", ""),
        (tmp_path / "trained", made / "plan", f"note: {made / 'plan'} is of other weights than those of {tmp_path}"),
        (made / "model", tmp_path / "old", f"note: {tmp_path / 'old'} does not tell of which model it is"),
    ):
        assert main(["perplexity", str(folder), "--plan", str(file), *words]) == 0
        assert capsys.readouterr().err.startswith(note)
        assert main(["freeze", str(folder), "--plan", str(file), "--out", str(tmp_path / "out")]) == 0
        error = capsys.readouterr().err
        assert error.startswith(note)
        assert error.count("\n") == bool(note)
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("calibrate NONE --text TEXT --out X", "does not exist"),
        ("calibrate MODEL --out X", "one of the arguments --text --data is required"),
        ("calibrate MODEL --text TEXT --sequences 1 --out X", "must be a whole number, at least 2"),
        ("calibrate MODEL --text TEXT --length 9000 --out X", "positions for 64"),
        ("calibrate MODEL --text TEXT --sequences 900 --length 60 --out X", "too few for 900 windows of 60"),
        ("calibrate MODEL --text TEXT --length 16 --selector qk_gradient --out X", "averages gradients"),
        ("calibrate MODEL --text TEXT --selector best --out X", "'best'"),
        ("calibrate MODEL --text MODEL/model.safetensors --length 16 --out X", "not UTF-8"),
        ("calibrate FROZEN/bare --text TEXT --length 16 --out X", "has no tokenizer that transformers can read"),
        ("calibrate MODEL --data MODEL --length 16 --out X", "manifest.json"),
        ("calibrate TEXT --text TEXT --out X", "text.txt is no model of transformers: give the folder"),
        ("calibrate EMPTY --text TEXT --out X", "it has no config.json"),
        ("calibrate CUT --text TEXT --length 16 --out X", "the weights are damaged or cut short"),
        ("calibrate SHAPE --text TEXT --length 16 --out X", "lm_head.weight, model.embed_tokens.weight"),
        (
            "calibrate KIND --text TEXT --length 16 --out X",
            "kind: The checkpoint you are trying to load has model",
        ),
        ("calibrate LIST --text TEXT --length 16 --out X", "list: Unrecognized model"),
        ("calibrate WORDS --text TEXT --length 16 --out X", "words has no tokenizer that transformers can read (KeyE"),
        ("calibrate MORE --text TEXT --length 16 --out X", "and 8 more; its config.json must be that of its weights"),
        ("calibrate MODEL --text NONE --out X", "argument --text: "),
        ("calibrate MODEL --text NONE --out X", "none does not exist: give a UTF-8 text; python -m saf_titan.hf calib"),
        ("calibrate MODEL --text MODEL --out X", "model is a folder: give a UTF-8 text"),
        ("calibrate MODEL --data NONE --out X", "none does not exist: give a folder of token shards"),
        ("perplexity MODEL --text NONE", "argument --text: "),
        ("freeze MODEL --plan PLAN --compensate --data NONE --out X", "argument --data: "),
        ("replacement MODEL --stats STATS --text NONE --out X", "argument --text: "),
        ("finetune MODEL --task sst2 --data NONE --out X", "none does not exist: give a file of the task"),
        ("finetune MODEL --task sst2 --data TEXT --eval NONE --out X", "argument --eval: "),
        ("export EMPTY --out X", "empty is not a complete checkpoint: it has no .metadata"),
        ("export NONE --out X", "none does not exist: give the folder of a checkpoint, <run>/checkpoint/step-N"),
        ("calibrate NONE --text TEXT --out MODEL", "model is a folder; give the name of a file"),
        ("calibrate NONE --text TEXT --out X/stats", "make it, or choose another place"),
        ("replacement NONE --stats STATS --text TEXT --out X/losses", "make it, or choose another place"),
        ("evaluate NONE --tasks none --out X/results", "make it, or choose another place"),
        ("freeze NONE --plan NONE --out TEXT/x", "text.txt is a file; choose another place"),
        ("finetune MODEL --task sst2 --data TEXT --out TEXT/x", "text.txt is a file; choose another place"),
        ("freeze MODEL --plan STATS --out X", "a static_plan is needed"),
        ("freeze FROZEN --plan PLAN --out X", "has a plan of 2 static heads already"),
        ("freeze MODEL --plan PLAN --out FROZEN", "exists already"),
        ("freeze MODEL --plan PLAN --compensate --out X", "give --text or --data"),
        (
            "freeze MODEL --plan PLAN --compensate --text TEXT --length 17 --out X",
            "--length 17, but the plan's patterns are fitted to 16 tokens",
        ),
        ("freeze MODEL --plan PLAN --out /proc/X", "/proc/X cannot be made ("),
        ("perplexity BARE --text TEXT", "bare has no tokenizer that transformers can read: copy its tokenizer files"),
        ("calibrate RUN --text TEXT --out X", "python -m saf_titan.hf export makes one of a checkpoint of this tr"),
        ("perplexity FROZEN --text TEXT --plan PLAN", "give the ordinary model"),
        ("perplexity FROZEN --text TEXT --length 17", "fitted to sequences of 16 tokens; lower --length"),
        ("perplexity MODEL --text TEXT --plan PLAN --length 17", "fitted to sequences of 16 tokens; lower --length"),
    ],
)
def test_mistakes_are_one_line(
    words: str, message: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "NONE": "none",
        "TEXT": "text.txt",
        "MODEL": "model",
        "STATS": "stats",
        "PLAN": "plan",
        "FROZEN": "frozen",
        "EMPTY": "empty",
        "CUT": "cut",
        "SHAPE": "shape",
        "MORE": "more",
        "KIND": "kind",
        "LIST": "list",
        "WORDS": "words",
        "BARE": "frozen/bare",
        "RUN": "run",
    }
    for name, place in places.items():
        words = words.replace(name, str(made / place))
    assert main(words.replace(" X", f" {tmp_path}/X").split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "X").exists()
