"""One real parent for the tests of studies: a tiny run with checkpoints before and after a freeze."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import corpus_overrides
from tests.e2e.runs import Run, train

__all__ = ["corpus_overrides"]


@pytest.fixture(scope="session")
def parent_run(tmp_path_factory: pytest.TempPathFactory, corpus_overrides: tuple[str, ...]) -> Run:
    """Heads are live in its checkpoints of steps 2 and 4, and two are static in those of steps 6 and 8."""
    return train(tmp_path_factory.mktemp("parent"), *corpus_overrides, ranks=1)
