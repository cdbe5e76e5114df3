"""Calibration: one forward a batch, statistics of the right heads, the same numbers on every number of ranks.

Covers saf/calibrate/calibration.py, saf/calibrate/capture.py, saf/calibrate/exchange.py.
"""

from pathlib import Path

import pytest
import torch

from saf_titan.ops.attention_stats import attention_stats_naive
from saf_titan.saf.calibrate.calibrate import calibrate
from saf_titan.saf.calibrate.calibration import Calibration
from tests.saf.fake_model import NUM_HEADS, NUM_LAYERS, SEQ_LEN, FakeAttention, FakeModel, sequences, uneven_model


@pytest.mark.parametrize("batch_size", [2, 6], ids=["kept", "inline"])
def test_statistics_are_those_of_each_layer(batch_size: int) -> None:
    model, tokens = FakeModel(), sequences(6)
    calibration = calibrate(model.attentions, tokens.split(batch_size), model, positions=range(6), seed=7, source="x")
    assert [a.calls for a in model.attentions] == [6 // batch_size] * NUM_LAYERS
    assert [a.capture for a in model.attentions] == [None] * NUM_LAYERS
    assert calibration.live_LH.all()
    assert calibration.record.num_sequences == 6
    assert calibration.record.positions == (0, 1, 2, 3, 4, 5)
    for layer, attention in enumerate(model.attentions):
        expected = attention_stats_naive(*attention.queries_and_keys(tokens))
        torch.testing.assert_close(calibration.variance_LH[layer], expected.variance_H, rtol=1e-6, atol=0)
        torch.testing.assert_close(calibration.kl_LH[layer], expected.kl_H, rtol=1e-5, atol=0)
        torch.testing.assert_close(calibration.column_mass_LHT[layer], expected.column_mass_HT, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(calibration.sink_mass_LH[layer], expected.sink_mass_H, rtol=1e-5, atol=0)
        torch.testing.assert_close(calibration.recent_mass_LH(5)[layer], expected.recent_mass_H(5), rtol=1e-5, atol=0)


def test_static_heads_have_no_statistics() -> None:
    live = (1, 3)
    model = FakeModel([FakeAttention(0, live=live, num_kv_heads=2), FakeAttention(1, live=())])
    tokens = sequences(4)
    calibration = calibrate(model.attentions, [tokens], model)
    assert calibration.live_LH.tolist() == [[False, True, False, True], [False] * NUM_HEADS]
    assert calibration.variance_LH.isnan().tolist() == [[True, False, True, False], [True] * NUM_HEADS]
    expected = attention_stats_naive(*model.attentions[0].queries_and_keys(tokens))
    torch.testing.assert_close(calibration.kl_LH[0, list(live)], expected.kl_H[list(live)], rtol=1e-5, atol=0)


def test_repeated_calibration_is_bit_identical() -> None:
    model, tokens = FakeModel(), sequences(4)
    first, second = (calibrate(model.attentions, tokens.split(2), model) for _ in range(2))
    assert first.to_bytes() == second.to_bytes()


def test_calibration_leaves_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    model = FakeModel()
    calibrate(model.attentions, [sequences(2)], model)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.distributed
@pytest.mark.parametrize("batch_size", [2, 6], ids=["kept", "inline"])
def test_every_number_of_ranks_gives_the_same_bytes(four_ranks: Path, batch_size: int) -> None:
    model = uneven_model()
    alone = calibrate(model.attentions, sequences(6).split(batch_size), model, source="fake").to_bytes()
    for rank in range(4):
        assert (four_ranks / f"batch{batch_size}.rank{rank}").read_bytes() == alone


@pytest.mark.distributed
def test_every_rank_names_the_broken_heads(four_ranks: Path) -> None:
    for rank in range(4):
        message = (four_ranks / f"error.rank{rank}").read_text()
        assert message.startswith("attention of L2H3 (layer, head) is not finite")


def test_capture_is_reset_after_a_failure() -> None:
    model = FakeModel()

    def forward(tokens: torch.Tensor) -> None:
        model(tokens)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        calibrate(model.attentions, [sequences(2)], forward)
    assert [a.capture for a in model.attentions] == [None] * NUM_LAYERS


def test_impossible_calibrations_are_refused() -> None:
    model = FakeModel()
    with pytest.raises(ValueError, match="at least 2 calibration sequences, got 1"):
        calibrate(model.attentions, [sequences(1)], model)
    with pytest.raises(ValueError, match="at least one batch"):
        calibrate(model.attentions, [], model)
    with pytest.raises(ValueError, match="no attention layer called `capture`"):
        calibrate(model.attentions, [sequences(2)], lambda tokens: None)
    with pytest.raises(ValueError, match="layer 0 called `capture` 1 times in 2 forwards"):
        calibrate(model.attentions, [0, 1], lambda i: model.attentions[0](sequences(2)) if i else None)
    with pytest.raises(ValueError, match="positions has 3 entries for 2 calibration sequences"):
        calibrate(model.attentions, [sequences(2)], model, positions=range(3))
    with pytest.raises(ValueError, match="3 live heads are not evenly grouped over 2 kv heads"):
        calibrate(
            model.attentions,
            [sequences(2)],
            lambda _: model.attentions[0].capture(torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 2, 8), (0, 1, 3), None),
        )
    model.attentions[0].q_VHD[:, 2] = torch.inf
    with pytest.raises(ValueError, match="attention of L0H2"):
        calibrate(model.attentions, [sequences(2)], model)


def test_file_round_trip(tmp_path: Path) -> None:
    model = FakeModel([FakeAttention(0, live=(0, 2))])
    calibration = calibrate(model.attentions, [sequences(3)], model, positions=(5, 6, 7), seed=3, source="val")
    calibration = calibration.with_scores(qk_gradient=torch.arange(NUM_HEADS).double()[None])
    path = tmp_path / "stats.safetensors"
    calibration.save(path)
    loaded = Calibration.load(path)
    assert loaded.record == calibration.record
    assert loaded.to_bytes() == path.read_bytes()
    assert torch.equal(loaded.extra_scores["qk_gradient"], calibration.extra_scores["qk_gradient"])
    assert loaded.column_mass_LHT.shape == (1, NUM_HEADS, SEQ_LEN)
    with pytest.raises(ValueError, match=r"'x' have shape \(2, 2\)"):
        calibration.with_scores(x=torch.zeros(2, 2))
