"""Pattern contents: what each one is, and that random ones do not depend on the company.

Covers saf/fit/content.py, saf/fit/registry.py, saf/fit/slots.py.
"""

import torch

from saf_titan.heads.names import Head
from saf_titan.saf.calibrate.calibration import Calibration
from saf_titan.saf.fit.compact import dense_pattern
from saf_titan.saf.fit.content import CompactContent
from saf_titan.saf.fit.registry import CONTENTS
from tests.saf.synthetic import T, calibration


def content_parameters(
    content: str, data: Calibration, heads: list[Head], seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    entry = CONTENTS[content]
    assert isinstance(entry, CompactContent)
    assert entry.parameters is not None
    return entry.parameters(data, heads, seed)


DATA = calibration([[0.1, 0.2], [0.3, 0.4]])


def test_mean_is_the_fit_that_the_gate_has_made() -> None:
    mean = CONTENTS["mean"]
    assert isinstance(mean, CompactContent)
    assert mean.parameters is None


def test_distance_has_no_column() -> None:
    alpha, rho = content_parameters("distance", DATA, [(0, 1)])
    assert alpha.abs().max() == 0
    torch.testing.assert_close(dense_pattern(alpha, rho)[0], DATA.mean_map_LHPP[0, 1], rtol=0, atol=1e-3)


def test_uniform_is_uniform() -> None:
    p = dense_pattern(*content_parameters("uniform", DATA, [(0, 0)]))
    row = torch.arange(1, T + 1, dtype=torch.float64)
    torch.testing.assert_close(p[0], torch.ones(T, T, dtype=torch.float64).tril() / row[:, None])


def test_random_belongs_to_the_slot() -> None:
    alpha, rho = content_parameters("random", DATA, [(0, 1), (1, 0)], seed=3)
    alone_alpha, alone_rho = content_parameters("random", DATA, [(1, 0)], seed=3)
    assert torch.equal(alpha[1:], alone_alpha)
    assert torch.equal(rho[1:], alone_rho)
    assert not torch.equal(alpha[0], alpha[1])
    assert not torch.equal(content_parameters("random", DATA, [(1, 0)], seed=4)[0], alone_alpha)
    assert 0.6 < alpha.std() < 1.4
