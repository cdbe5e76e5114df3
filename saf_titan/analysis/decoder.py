"""What the analysis needs of a decoder: its attention layers, its forward, and the tokens of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saf_titan.data.excerpts import Excerpts
from saf_titan.ops.finite import require_finite
from saf_titan.saf.plan.plan import StaticPlan


@dataclass(frozen=True)
class AnalysedDecoder:
    """A model that is ready for analysis; `saf_titan.generate.opened` makes one of a run, a checkpoint or a folder."""

    name: str
    attentions: Sequence[Any]
    """The attention layers, in order."""
    logits: Callable[[Tensor, Tensor], Tensor]
    """Takes token ids (B, T) and positions (N,), and returns the logits at these positions, (B, N, V)."""
    vocab_size: int
    """Number of token ids: a text has ids below it."""
    blocks: Sequence[nn.Module] = ()
    """The blocks that the layers belong to; their first argument is the residual stream."""
    norms: Sequence[Any] = ()
    """For each layer the RMS norm between its heads and the residual stream, or None."""
    plan: StaticPlan | None = None
    """The patterns of the static heads; None if every head is live."""
    longest: int | None = None
    """Largest number of tokens of a sequence; None for no limit."""
    read: Callable[[Path, int | None, int], Excerpts] | None = field(default=None, repr=False)
    """Takes a text file, the number of sequences (None for all) and the tokens of each, and returns the sequences."""
    pieces: Callable[[list[int]], list[str]] | None = field(default=None, repr=False)
    """Takes token ids and returns the text of each."""

    def norm(self, layer: int) -> Any:
        """The norm between the heads of a layer and the residual stream; None without one."""
        return self.norms[layer] if self.norms else None

    def chosen_layers(self, layers: Sequence[int]) -> frozenset[int]:
        """Return the numbers of the layers, or of all layers if none is given.

        Raises ValueError for a layer that the model does not have.
        """
        number = len(self.attentions)
        if wrong := [layer for layer in layers if not 0 <= layer < number]:
            raise ValueError(f"layer {wrong[0]} is not one of the layers 0 to {number - 1} of {self.name}")
        return frozenset(layers or range(number))

    @torch.no_grad()
    def run(self, tokens_BT: Tensor) -> None:
        """Run a forward for its hooks alone; logits are computed at the last position only."""
        self.logits(tokens_BT, torch.tensor([tokens_BT.shape[1] - 1]))

    @torch.no_grad()
    def require_finite(self, tokens_NT: Tensor) -> None:
        """Raise ValueError if what the model predicts behind the first sequence is not finite."""
        last_1 = torch.tensor([tokens_NT.shape[1] - 1])
        require_finite(self.logits(tokens_NT[:1], last_1), f"the output of {self.name}")


@contextmanager
def keeping_residuals(blocks: Sequence[nn.Module]) -> Iterator[dict[int, Tensor]]:
    """Inside the context, each forward of a block stores its input (B, T, C) in the yielded dictionary.

    The key is the number of the block.
    """
    found: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for number, block in enumerate(blocks):

            def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], number: int = number) -> None:
                found[number] = args[0] if args else kwargs["hidden_states"]

            stack.callback(block.register_forward_pre_hook(keep, with_kwargs=True).remove)
        yield found
