"""An interrupted measurement of interventions goes on with the sequences that it lacks, and never with other results.

Covers analysis/stored_rows.py, and the option --out of the command `interventions`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from saf_titan.analysis import __main__ as command_line
from saf_titan.analysis.decoder import AnalysedDecoder
from saf_titan.analysis.interventions import Settings, Study, measure_interventions
from tests.analysis.test_interventions import ROWS, decoder_of
from tests.hf.test_commands import TEXT, write_model
from tests.hf.tiny import our_model, tokens

SETTINGS = Settings(metrics=("attention", "random"), ways=("value",), sides=("top",), fractions=(0.2,), seeds=(0, 1))
FORWARDS = 1 + 3 * (1 + 2)
"""Forwards of a batch: the whole model, and for each of three rankings the scores and two removals."""


@pytest.fixture(scope="module")
def decoder() -> AnalysedDecoder:
    return decoder_of(our_model("gemma2"))


def measured(decoder: AnalysedDecoder, store: Path | None = None, **changes: Any) -> Study:
    options = {"text": tokens(5), "rows": ROWS, "settings": SETTINGS, "batch_size": 2} | changes
    text, rows, settings = (options.pop(name) for name in ("text", "rows", "settings"))
    return measure_interventions(decoder, text, rows, settings, store=store, **options)


def stop_after(forwards: int) -> Callable[[str, int, int], None]:
    def stop(stage: str, done: int, total: int) -> None:
        if done == forwards:
            raise KeyboardInterrupt

    return stop


def same(a: Study, b: Study) -> bool:
    pairs = [(a.nll_P, b.nll_P)]
    for x, y in zip(a.harms, b.harms, strict=True):
        assert [getattr(x, name) for name in ("metric", "seed", "fraction")] == [y.metric, y.seed, y.fraction]
        pairs += [(x.nll_P, y.nll_P), (x.kl_P, y.kl_P), (x.flips_P, y.flips_P)]
    return all(torch.equal(x, y) for x, y in pairs)


def test_an_interrupted_measurement_goes_on(decoder: AnalysedDecoder, tmp_path: Path) -> None:
    store, seen = tmp_path / "rows.jsonl", []
    whole = measured(decoder)
    with pytest.raises(KeyboardInterrupt):
        measured(decoder, store, progress=stop_after(2 * FORWARDS + 3))
    # the sequences of two batches are in the file, although the process has not ended well
    assert [json.loads(line)["sequence"] for line in store.read_text().splitlines()[1:]] == [0, 1, 2, 3]
    # a process that is killed leaves a part of a line
    lines = store.read_text().splitlines(keepends=True)
    store.write_text("".join(lines[:4]) + lines[4][:30])
    forwards: list[int] = []
    resumed = measured(decoder, store, resumed=seen.append, progress=lambda stage, done, total: forwards.append(total))
    assert seen == [3]
    assert forwards == [FORWARDS] * FORWARDS
    assert same(resumed, whole)
    # nothing is left to do
    assert same(measured(decoder, store, progress=stop_after(1)), whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": dataclasses.replace(SETTINGS, ways=("edge",))}, r"is of other ways: \['value'\].*\['edge'\]"),
        ({"settings": dataclasses.replace(SETTINGS, seeds=(0,))}, "is of other seeds"),
        ({"settings": dataclasses.replace(SETTINGS, layers=(1,))}, "is of other layers"),
        ({"settings": dataclasses.replace(SETTINGS, is_behind_norm=True)}, "is of another is_behind_norm"),
        ({"rows": ROWS[:2]}, "is of other positions"),
        ({"text": tokens(4)}, "is of another number of sequences: 5, and here 4"),
        ({"text": tokens(5, seed=1)}, "is of other sequences of tokens"),
        ({"model": {"model": "other"}}, "is of another model"),
    ],
)
def test_results_of_something_else_are_refused(
    decoder: AnalysedDecoder, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    store = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        measured(decoder, store, progress=stop_after(FORWARDS + 1))
    content = store.read_bytes()
    with pytest.raises(ValueError, match=rf"{message}.*; repeat the command that wrote it, or choose another folder"):
        measured(decoder, store, **changes)
    assert store.read_bytes() == content


def test_results_of_other_weights_are_refused(decoder: AnalysedDecoder, tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    measured(decoder, store)
    model = our_model("gemma2")
    with torch.no_grad():
        model.model.norm.weight.add_(0.01)
    with pytest.raises(ValueError, match=r"on sequence 0, and here it is .* the weights have changed; repeat"):
        measured(decoder_of(model), store)


def test_a_damaged_file_is_refused(decoder: AnalysedDecoder, tmp_path: Path) -> None:
    store = tmp_path / "rows.jsonl"
    measured(decoder, store)
    header, first, *_ = store.read_text().splitlines(keepends=True)
    short = json.dumps(json.loads(first) | {"harms": [[1.0, 2.0, 3.0]]}) + "\n"
    for rows in ("text\n", "[]\n", '{"sequence": 9}\n', '{"sequence": 9, "loss": 1.0, "harms": []}\n', short):
        store.write_text(header + rows)
        with pytest.raises(ValueError, match="is no file of intervention results"):
            measured(decoder, store)
    store.write_text("")
    with pytest.raises(ValueError, match="is no file of intervention results"):
        measured(decoder, store)


def test_the_command_goes_on_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model", "mistral")
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["interventions", str(folder), "--text", str(tmp_path / "text.txt"), "--sequences", "3", "--length", "16"]
    words += ["--positions", "4", "--batch-size", "1", "--metrics", "attention,norm", "--shares", "0.5"]
    assert command_line.main([*words, "--out", str(tmp_path / "whole")]) == 0
    table = capsys.readouterr().out
    store = tmp_path / "stopped/interventions.jsonl"
    with monkeypatch.context() as context:
        context.setattr(command_line, "_progress", lambda work: stop_after(60))
        assert command_line.main([*words, "--out", str(tmp_path / "stopped")]) == 130
    _, *said = capsys.readouterr().err.splitlines()
    assert said == [f"{store} keeps the sequences that are done; the same command goes on from there", "stopped"]
    assert not (tmp_path / "stopped/interventions.json").exists()
    assert command_line.main([*words, "--out", str(tmp_path / "stopped")]) == 0
    again = capsys.readouterr()
    assert again.out == table
    assert f"going on with {store}, which has the results of 2 sequences of 3" in again.err
    for name in ("interventions.json", "interventions.csv"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert command_line.main([*words, "--out", str(tmp_path / "stopped"), "--per", "head"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {store} is of another grain: 'token', and here 'head'; repeat the command")
