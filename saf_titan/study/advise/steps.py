"""Times training steps of one model with different heads static, in turns.

Legend: B sequences, T time, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saf_titan.layers.attention import SAFAttention
from saf_titan.report.summary import Quartiles
from saf_titan.saf.install.install import install
from saf_titan.saf.plan.plan import StaticPlan


class Steps:
    """Does training steps of a model on one batch: forward, backward, and AdamW.

    The learning rate is 0, so that the weights do not change.
    """

    def __init__(
        self, model: nn.Module, attentions: Sequence[SAFAttention], tokens_BT: Tensor, labels_BT: Tensor
    ) -> None:
        self._model, self._attentions = model, attentions
        self._tokens_BT, self._labels_BT = tokens_BT, labels_BT
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=True)

    def time(self, plans: Mapping[float, StaticPlan | None], rounds: int) -> dict[float, list[float]]:
        """Return the seconds of `rounds` steps for each plan. Every round does one step with each plan, in turn.

        A first round, which compiles and allocates, is not timed. All heads are live afterwards.

        plans: rate -> the plan of the static heads; None for all heads live.
        """
        seconds: dict[float, list[float]] = {rate: [] for rate in plans}
        for number in range(rounds + 1):
            for rate, plan in plans.items():
                install(self._attentions, plan)
                elapsed = self._step()
                if number:
                    seconds[rate].append(elapsed)
        install(self._attentions, None)
        return seconds

    def attention_share(self) -> float:
        """Return the share of a step that the attention of live heads takes: scores, softmax, and mixing of values,
        forward and backward. Projections are not counted."""
        spent: list[float] = []
        with _timing([attention.inner_attention for attention in self._attentions], spent):
            total = self._step()
        return sum(spent) / total

    def _step(self) -> float:
        start = _now()
        logits_BTV = self._model(self._tokens_BT)
        F.cross_entropy(logits_BTV.float().flatten(0, 1), self._labels_BT.flatten()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return _now() - start


@contextmanager
def _timing(modules: Sequence[nn.Module], spent: list[float]) -> Iterator[None]:
    """Append the seconds of each forward and backward of some modules to `spent`."""
    started: dict[tuple[int, str], float] = {}

    def begin(kind: str) -> Callable[..., None]:
        def hook(module: nn.Module, *_: object) -> None:
            started[id(module), kind] = _now()

        return hook

    def end(kind: str) -> Callable[..., None]:
        def hook(module: nn.Module, *_: object) -> None:
            spent.append(_now() - started.pop((id(module), kind)))

        return hook

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(begin("forward")).remove)
            stack.callback(module.register_forward_hook(end("forward")).remove)
            stack.callback(module.register_full_backward_pre_hook(begin("backward")).remove)
            stack.callback(module.register_full_backward_hook(end("backward")).remove)
        yield


def _now() -> float:
    """Return the time in seconds, after the accelerator has finished all work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def spread(values: Sequence[float]) -> Quartiles:
    """Return the median and the quartiles of at least two values."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Quartiles(median=median(values), low=low, high=high)


def speedups(seconds: Mapping[float, Sequence[float]]) -> dict[float, Quartiles]:
    """Return how many times as fast a step is as one with all heads live (rate 0), paired round by round.

    seconds: rate -> seconds of the step of each round.
    """
    return {
        rate: spread([ordinary / own for ordinary, own in zip(seconds[0.0], values, strict=True)])
        for rate, values in seconds.items()
    }
