"""Single-head replacement loss: against replacing by hand, resumed, and the rank correlation against its definition."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from saf_titan.analysis.replacement import ReplacementLosses, rank_correlation, replacement_losses
from saf_titan.hf.__main__ import main
from saf_titan.hf.measure import calibrate_model, text_loss
from saf_titan.saf.plan.decide import make_plan
from saf_titan.saf.plan.settings import PlanSettings
from tests.hf.test_commands import TEXT, write_model
from tests.hf.tiny import H, our_model, tokens

PLANNED = PlanSettings(rate=1 / 8, selector="list", heads=("L1H2",), max_fit_kl=99.0)


def measured(model, calibration, **options) -> tuple[ReplacementLosses, int]:
    calls = 0

    def loss() -> float:
        nonlocal calls
        calls += 1
        return text_loss(model, tokens(seed=5)).nll

    return replacement_losses(model.attentions, calibration, loss, **options), calls


@pytest.mark.parametrize("content", ["mean", "prune", "uniform"])
def test_each_head_is_replaced_alone_and_then_live_again(content: str) -> None:
    model = our_model("llama")
    calibration = calibrate_model(model, tokens())
    before = text_loss(model, tokens(seed=5)).nll
    losses, calls = measured(model, calibration, content=content)
    assert calls == 2 * H + 1
    assert losses.base == before == text_loss(model, tokens(seed=5)).nll
    for layer in range(2):
        for head in range(H):
            alone = PlanSettings(
                rate=1 / 8, selector="list", heads=(f"L{layer}H{head}",), content=content, max_fit_kl=99.0
            )
            model.set_plan(make_plan(calibration, alone))
            assert losses.loss_LH[layer, head].item() == pytest.approx(text_loss(model, tokens(seed=5)).nll, abs=1e-6)
            model.set_plan(None)
    assert losses.change_LH.abs().min() > 0


def test_heads_that_are_static_already_stay_so() -> None:
    model = our_model("llama")
    plan = make_plan(calibrate_model(model, tokens()), PLANNED)
    model.set_plan(plan)
    calibration = calibrate_model(model, tokens())
    before = text_loss(model, tokens(seed=5)).nll
    losses, _ = measured(model, calibration, base_plan=plan)
    assert losses.base == before == text_loss(model, tokens(seed=5)).nll
    assert losses.loss_LH.isnan().nonzero().tolist() == [[1, 2]]


def test_an_interrupted_measurement_goes_on(tmp_path: Path) -> None:
    model, store = our_model("llama"), tmp_path / "losses.jsonl"
    calibration = calibrate_model(model, tokens())
    whole, _ = measured(model, calibration)

    def stop(stage: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(model, calibration, store=store, progress=stop)
    assert all(not attention.static_heads for attention in model.attentions)
    # the process ended in the middle of a line
    store.write_text(store.read_text() + '{"head": "L0')
    resumed, calls = measured(model, calibration, store=store)
    assert calls == 1 + 2 * H - 3
    assert torch.equal(resumed.loss_LH, whole.loss_LH)
    again, calls = measured(model, calibration, store=store)
    assert calls == 1
    # another number of threads adds up the loss in another order
    replacement_losses(model.attentions, calibration, lambda: whole.base * (1 + 1e-8), store=store)
    assert torch.equal(again.loss_LH, whole.loss_LH)


def test_a_store_of_something_else_is_refused(tmp_path: Path) -> None:
    model, store = our_model("llama"), tmp_path / "losses.jsonl"
    calibration = calibrate_model(model, tokens())
    measured(model, calibration, store=store)
    content = store.read_bytes()
    with pytest.raises(ValueError, match="other statistics"):
        measured(model, calibrate_model(model, tokens(seed=9)), store=store)
    with pytest.raises(ValueError, match="is of another content: 'mean', and here 'uniform'"):
        measured(model, calibration, store=store, content="uniform")
    with pytest.raises(ValueError, match="another loss before any replacement"):
        replacement_losses(model.attentions, calibration, lambda: 1.0, store=store)
    assert store.read_bytes() == content
    for text in ("", "[]\n", "{}\n{}\n", "text\n", '{"format": 1}\n{"head": "x", "loss": 1}\n'):
        store.write_text(text)
        with pytest.raises(ValueError, match=r"is no file of replacement losses|is of another format"):
            measured(model, calibration, store=store)
    with pytest.raises(ValueError, match="the model has 1 of 4"):
        replacement_losses(model.attentions[:1], calibration, lambda: 1.0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["--text", str(tmp_path / "text.txt"), "--length", "16"]
    assert main(["calibrate", str(folder), *words, "--out", str(tmp_path / "stats")]) == 0
    out = ["--stats", str(tmp_path / "stats"), "--out", str(tmp_path / "losses.jsonl")]
    capsys.readouterr()
    assert main(["replacement", str(folder), *words[:2], *out]) == 0
    first = capsys.readouterr().out
    assert [json.loads(line)["loss"] for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    table = [line.split() for line in first.splitlines() if line.startswith("L")]
    rises = [float(row[1]) for row in table]
    assert rises == sorted(rises, reverse=True)
    assert len(rises) == 2 * H
    assert "rank correlation" in first
    assert main(["replacement", str(folder), *words[:2], *out]) == 0
    again = capsys.readouterr()
    assert again.out == first
    assert again.err == f"going on with {tmp_path / 'losses.jsonl'}, which has {2 * H} heads\n"
    assert main(["replacement", str(folder), *words[:2], *out, "--length", "32"]) == 2
    assert "statistics are of sequences of 16 tokens" in capsys.readouterr().err


def reference_ranks(values: np.ndarray) -> np.ndarray:
    return np.array([(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values])


def test_the_rank_correlation_is_spearmans() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(6, (40,), generator=generator).double()
    y = x + 2 * torch.randn(40, generator=generator)
    z = x + torch.randn(40, generator=generator)
    x[3], y[7] = math.nan, math.nan
    kept = [n for n in range(40) if n not in (3, 7)]
    a, b, c = (reference_ranks(v.numpy()[kept]) for v in (x, y, z))
    assert rank_correlation(x, y) == pytest.approx(np.corrcoef(a, b)[0, 1])
    ab, ac, bc = (np.corrcoef(u, v)[0, 1] for u, v in ((a, b), (a, c), (b, c)))
    partial = (ab - ac * bc) / math.sqrt((1 - ac**2) * (1 - bc**2))
    assert rank_correlation(x, y, [z]) == pytest.approx(partial)
    monotonic: Tensor = torch.arange(9.0)
    assert rank_correlation(monotonic, monotonic.exp()) == pytest.approx(1.0)
    assert rank_correlation(monotonic, -monotonic) == pytest.approx(-1.0)
    assert math.isnan(rank_correlation(monotonic, torch.ones(9)))
