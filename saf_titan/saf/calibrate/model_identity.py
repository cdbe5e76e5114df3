"""Which model statistics and plans are of: its sizes and constants, and a digest of some of its weights.

Two models may have the same numbers of layers and heads and nothing else in common, so files keep more than that. Sizes
must agree. Weights may differ: a plan stays in use while its model is trained further.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Identity = Mapping[str, Any]
"""Sizes and constants by name, as JSON holds them, and under `WEIGHTS` what `weights_digest` gave."""

WEIGHTS = "weights"
QUERY_KEY = "wq, wk"
"""The kind of digest of query and key projections, which `WatchedProjections` takes."""
_SIZES = ("num_layers", "num_heads", "dim")
"""What must agree between a model of our trainer and one of transformers. Constants have other names there, an export
may repeat kv heads, and a vocabulary may be padded."""
_SAMPLES = 64
"""Elements of each tensor that a digest reads."""


def weights_digest(kind: str, tensors: Iterable[Tensor]) -> str:
    """Return "kind:sha256" of the shape and of 64 evenly spaced elements of each tensor, in the order given.

    kind: which tensors of the model these are; digests of different kinds are not compared. The elements are rounded to
    bfloat16, so that a model has one digest in whatever type its weights were loaded.
    """
    return _digest(kind, map(_sample, tensors))


def _digest(kind: str, samples: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for sample in samples:
        sha.update(sample)
    return f"{kind}:{sha.hexdigest()}"


def _sample(tensor: Tensor) -> bytes:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    flat_N = whole.detach().reshape(-1)
    sample_S = flat_N[:: max(1, -(-flat_N.numel() // _SAMPLES))].to("cpu", torch.bfloat16).contiguous()
    return f"{tuple(whole.shape)}:".encode() + sample_S.view(torch.uint8).numpy().tobytes()


class WatchedProjections:
    """Takes samples of query and key weights while a forward runs, when FSDP has gathered them.

    A context; `digest` is known once the forward has run inside it, and is the same on every rank.
    """

    def __init__(self, projections: Sequence[Any]) -> None:
        """projections: of each layer, the module with the linear maps `wq` and `wk`."""
        self._projections = projections
        self._samples: dict[int, bytes] = {}
        self._hooks = ExitStack()

    def __enter__(self) -> WatchedProjections:
        for layer, module in enumerate(self._projections):
            handle = module.register_forward_pre_hook(lambda module, _, layer=layer: self._take(layer, module))
            self._hooks.callback(handle.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.close()

    def _take(self, layer: int, module: Any) -> None:
        # the gathered weights are gone when the layer has run
        if layer not in self._samples:
            self._samples[layer] = _sample(module.wq.weight) + _sample(module.wk.weight)

    @property
    def digest(self) -> str:
        """What `weights_digest` gives for wq and wk of all layers, in order."""
        return _digest(QUERY_KEY, (self._samples[layer] for layer in sorted(self._samples)))


def require_same_model(then: Identity | None, now: Identity | None, *, source: str, model: str) -> str | None:
    """Raise ValueError, naming each difference, unless statistics or a plan can be of a model.

    Args:
        then: the identity in a file; None in one of an earlier version.
        now: that of the model, or of another file; None if it is not known.
        source, model: what to call the two.

    Returns one sentence where something could not be compared or the weights differ; None if all agrees.
    """
    if then is None or now is None:
        which = source if then is None else model
        return (
            f"{which} does not tell of which model it is, as files of earlier versions do not: only the numbers of "
            f"layers and heads of {source} and {model} were compared"
        )
    same_kind = ("family" in then) == ("family" in now)
    names = [name for name in now if name in then and name != WEIGHTS and (same_kind or name in _SIZES)]
    changes = [f"{name} is {then[name]} there and {now[name]} here" for name in names if then[name] != now[name]]
    if changes:
        raise ValueError(f"{source} is of another model than {model}: {'; '.join(changes)}; calibrate {model} itself")
    kinds = [str(identity.get(WEIGHTS, "")).partition(":")[0] for identity in (then, now)]
    if kinds[0] != kinds[1] or not kinds[0]:
        return f"{source} and {model} agree in {', '.join(names)}; their weights cannot be compared"
    if then[WEIGHTS] != now[WEIGHTS]:
        return (
            f"{source} is of other weights than those of {model}, and agrees with it in {', '.join(names)}: it is of "
            f"another step of its training, or of another model; calibrate {model} itself if it is another"
        )
    return None
