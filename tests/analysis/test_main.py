"""The command line of the analysis on a run, a checkpoint and a folder of transformers, and what goes wrong.

Covers analysis/arguments.py, analysis/contribution_tables.py, analysis/sink_tables.py, generate/opened.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from saf_titan.analysis.__main__ import main
from saf_titan.analysis.contribution_tables import RECENT, measure_contributions, token_shares
from saf_titan.analysis.interventions import Settings, measure_interventions
from saf_titan.analysis.layer import LayerAttention, watching
from saf_titan.analysis.sink_tables import measure_sinks
from saf_titan.generate.opened import open_decoder
from tests.generate.run_folder import T, half_static, write_run, write_step
from tests.hf.test_commands import TEXT, made, write_model

__all__ = ["made"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint in which three of six heads are static."""
    folder = write_run(tmp_path_factory.mktemp("analysis"))
    write_step(folder, 10, half_static())
    (folder / "text.txt").write_text(TEXT)
    return folder


def written(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> tuple[str, str]:
    """What a command wrote to standard output and to standard error."""
    assert main([str(word) for word in words]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_contributions_of_a_run(run_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--text", run_folder / "text.txt", "--sequences", 2, "--length", T, "--query", 5)
    out, err = written(capsys, "contributions", run_folder, *words, "--out", tmp_path / "c.json")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:7]] == ["head", "L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    assert "step-10" in err
    assert "\x1b" not in out
    assert lines[8].startswith("keys of position 5, 'u'")
    assert sorted(int(line.split()[-4]) for line in lines[10:]) == list(range(6))
    heads = json.loads((tmp_path / "c.json").read_text())["heads"]
    assert [head["head"] for head in heads] == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    for layer in (heads[:3], heads[3:]):
        assert sum(head["share_of_layer"] for head in layer) == pytest.approx(1, abs=1e-4)
    for head in heads:
        for name in ("weight_by_key", "weight_by_lag", "attention_by_key", "attention_by_lag"):
            assert sum(head[name]) == pytest.approx(1, abs=1e-4)
        assert head["attention_on_first"] == pytest.approx((head["attention_by_key"][0] * T - 1) / (T - 1), abs=1e-4)


def test_a_checkpoint_and_its_run_give_the_same(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--text", run_folder / "text.txt", "--sequences", 2, "--length", T)
    by_run = written(capsys, "sinks", run_folder, *words)[0]
    assert written(capsys, "sinks", run_folder / "checkpoint/step-10", *words)[0] == by_run
    assert by_run.startswith("0 of 6 heads are sinks") or "sinks" in by_run


def test_sinks_of_a_model_of_transformers(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--text", made / "text.txt", "--sequences", 3, "--length", 16, "--eps", 0.05)
    out, _ = written(capsys, "sinks", made / "frozen", *words, "--out", tmp_path / "s.json")
    found = json.loads((tmp_path / "s.json").read_text())
    sinks = [head for head in found["heads"] if head["mass"] > 0.05]
    assert out.startswith(f"{len(sinks)} of 8 heads are sinks")
    assert "layers with a sink, by the probability of the likeliest next token" in out
    assert len(found["by_confidence"]["|o| / |o_rest|"]) == 3
    # the same numbers as by the function
    decoder = open_decoder(made / "frozen", length=16)
    assert decoder.read is not None
    text = decoder.read(made / "text.txt", 3, 16).tokens_NT
    model = measure_sinks(decoder, text, eps=0.05)
    assert [head.name for head in model.sinks] == [head["name"] for head in sinks]
    contributions = measure_contributions(decoder, text)
    for head, layer, h in zip(model.heads, [0] * 4 + [1] * 4, [*range(4), *range(4)], strict=True):
        summary = contributions.layers[layer].by_head
        assert head.mass == pytest.approx(summary.sink_attention_H[h].item(), abs=1e-5)
        assert head.weight == pytest.approx(summary.sink_share_H[h].item(), abs=1e-4)


def test_the_keys_of_a_query_sum_to_one_in_every_layer(made: Path) -> None:
    decoder = open_decoder(made / "frozen", length=16)
    assert decoder.read is not None
    text = decoder.read(made / "text.txt", 1, 16).tokens_NT
    shares = token_shares(decoder, text, 9)
    for shares_LT in (shares.attention_LT, shares.contribution_LT):
        assert shares_LT.shape == (2, 10)
        torch.testing.assert_close(shares_LT.sum(1), torch.ones(2), rtol=1e-4, atol=1e-5)
    assert RECENT == 16


def test_a_norm_behind_the_heads_changes_contributions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path / "gemma", "gemma3_text")
    (tmp_path / "text.txt").write_text(TEXT)
    words = ("contributions", folder, "--text", tmp_path / "text.txt", "--sequences", 2, "--length", 12)
    before, behind = (written(capsys, *words, *more)[0] for more in ((), ("--behind-norm",)))
    assert before.splitlines()[0] == behind.splitlines()[0]
    assert before != behind


def test_interventions_of_both_kinds_of_model(
    run_folder: Path, made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--sequences", 2, "--length", 16, "--positions", 4, "--shares", "0.1,0.5", "--ways", "value,edge")
    for model, text in ((run_folder, run_folder / "text.txt"), (made / "frozen", made / "text.txt")):
        out, err = written(
            capsys,
            "interventions",
            model,
            "--text",
            text,
            *words,
            "--metrics",
            "contribution,random",
            "--out",
            tmp_path / model.name,
        )
        assert "edges cut before the softmax, the first position is kept" in out
        assert sum(line.startswith("top keys by") for line in out.splitlines()) == 4
        assert "wrote" in err
        about = json.loads((tmp_path / model.name / "interventions.json").read_text())["about"]
        assert about["grain"] == "token"
        assert about["positions"] == [4, 7, 11, 14]


def test_options_without_effect_are_said(
    run_folder: Path, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--sequences", 2, "--length", 8)
    text = ("--text", run_folder / "text.txt")
    for model, name in ((run_folder, run_folder / "checkpoint/step-10"), (made / "model", made / "model")):
        _, err = written(capsys, "sinks", model, *text, *words, "--behind-norm")
        reason = f"on {name}, where no norm stands between heads and residual stream"
        assert err.endswith(f"note: --behind-norm has no effect {reason}\n")
    chosen = ("--metrics", "attention", "--ways", "edge", "--shares", "0.5", "--seeds", 5, "--out", tmp_path)
    _, err = written(capsys, "interventions", run_folder, *text, *words, *chosen)
    assert "note: --seeds has no effect without the measure random, the one that is drawn\n" in err


def test_chosen_layers_alone(run_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """All three commands have the same option; a layer's numbers are those that it has among all."""
    words = (run_folder, "--text", run_folder / "text.txt", "--sequences", 2, "--length", 16)
    whole = written(capsys, "contributions", *words)[0].splitlines()
    out, _ = written(capsys, "contributions", *words, "--layers", 1, "--query", 5, "--out", tmp_path / "c.json")
    chosen = [line.split() for line in out.splitlines()[:4]]
    assert chosen == [line.split() for line in (whole[0], *whole[4:])]
    assert "mean over 1 layer" in out
    assert json.loads((tmp_path / "c.json").read_text())["layers"] == [1]
    written(capsys, "sinks", *words, "--layers", "0-0", "--out", tmp_path / "s.json")
    assert [head["name"] for head in json.loads((tmp_path / "s.json").read_text())["heads"]] == ["L0H0", "L0H1", "L0H2"]
    decoder = open_decoder(run_folder, length=16)
    assert decoder.read is not None
    text_NT = decoder.read(run_folder / "text.txt", 2, 16).tokens_NT
    rows_N = torch.tensor([8, 12])

    def rise(*layers: int, share: float = 1.0) -> float:
        settings = Settings(
            metrics=("attention",), ways=("value",), sides=("top",), fractions=(share,), spares_first=(False,),
            layers=layers,
        )  # fmt: skip
        (harm,) = measure_interventions(decoder, text_NT, rows_N, settings).harms
        return harm.nll_P.mean().item()

    # every value of a layer is gone: the other layer goes on as it was
    for layer in (0, 1):

        def silence(one: LayerAttention, gone: int = layer) -> torch.Tensor | None:
            if one.layer != gone:
                return None
            return torch.zeros(*one.v_BTKD.shape[:2], len(one.heads), one.v_BTKD.shape[3])

        targets_BN = text_NT[:, rows_N + 1]
        with torch.no_grad():
            before = decoder.logits(text_NT, rows_N)
            with watching(decoder.attentions, silence):
                after = decoder.logits(text_NT, rows_N)
        losses = [torch.nn.functional.cross_entropy(x.flatten(0, 1), targets_BN.flatten()) for x in (before, after)]
        assert rise(layer) == pytest.approx((losses[1] - losses[0]).item(), abs=1e-5)
    assert rise(0, 1) == rise()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sinks", "{run}", "--text", "missing.txt"), "--text: missing.txt does not exist: give a UTF-8 text"),
        (("sinks", "missing", "--text", "{text}"), "missing does not exist"),
        (("sinks", "{run}", "--text", "{text}", "--length", "4000"), r"4000, but .* is defined for \d+ tokens"),
        (("contributions", "{run}", "--text", "{text}", "--length", "16", "--query", "16"), "--query 16, but"),
        (("interventions", "{run}", "--text", "{text}", "--metrics", "norms", "--out", "{out}"), "metric 'norms' is"),
        (("interventions", "{run}", "--text", "{text}", "--shares", "2", "--out", "{out}"), "2"),
        (("interventions", "{run}", "--text", "{text}", "--out", "{text}"), "is a file: give a folder"),
        (("interventions", "{run}", "--text", "{text}", "--out", "{text}/x"), "cannot be made"),
        (
            ("sinks", "{run}", "--text", "{text}", "--length", "16", "--layers", "0,2"),
            "layer 2 is not one of the layers 0 to 1",
        ),
        (("contributions", "{run}", "--text", "{text}", "--length", "16", "--layers", "0-5"), "layer 2 is not one"),
        (("contributions", "{run}", "--text", "{text}", "--layers", "3-1"), "from a later layer to an earlier one"),
        (("contributions", "{run}", "--text", "{text}", "--layers", "a"), "'a'"),
        (
            ("interventions", "{run}", "--text", "{text}", "--length", "16", "--layers", "7", "--out", "{out}"),
            "layer 7 is",
        ),
        (
            ("interventions", "{run}", "--text", "{text}", "--out", "/proc"),
            "/proc/interventions.json cannot be written",
        ),
        (("sinks", "{run}", "--text", "{text}", "--out", "/proc/s.json"), "/proc/s.json cannot be written"),
        (("contributions", "{run}", "--text", "{text}", "--out", "{out}/no/c.json"), "there is no folder"),
        (("sinks", "{run}", "--text", "{text}", "--out", "{run}"), "is a folder; give the name of a file"),
        (("report", "{run}", "--text", "{text}", "--out", "{out}/no/page.html"), "there is no folder"),
        (("sinks", "{hf}", "--text", "{text}", "--length", "16", "--tokenizer", "gpt2"), "are for checkpoints of this"),
        (("reports",), "invalid choice"),
    ],
)
def test_mistakes_end_in_one_line(
    run_folder: Path,
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    places = {"run": run_folder, "text": run_folder / "text.txt", "hf": made / "model", "out": tmp_path / "out"}
    out, err = written(capsys, *(word.format(**places) for word in words), status=2)
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert re.search(message, last), last
    assert not out
