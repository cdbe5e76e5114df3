"""The present length of each sequence of a batch; all layers of a model share one `Progress`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """The positions of the tokens of the present forward in their sequences.

    Prompts are padded at their right end, so position j of a sequence is entry j of its cache, whatever the lengths of
    the other prompts. Entries after the end of a shorter sequence get the weight zero.
    """

    capacity: int
    """Largest number of tokens of each sequence."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of each sequence, those of the present forward included."""
    is_prefill: bool = True
    """Whether the present forward computes whole prompts, not one token of each sequence."""

    def start(self, lengths: list[int]) -> None:
        """Begin with prompts of these lengths."""
        assert lengths
        assert max(lengths) <= self.capacity
        self.lengths, self.is_prefill = list(lengths), True

    def advance(self) -> None:
        """Go on to the next token of every sequence."""
        self.lengths, self.is_prefill = [length + 1 for length in self.lengths], False
        assert max(self.lengths) <= self.capacity, "the cache is full"

    @property
    def positions(self) -> list[int]:
        """Position of the newest token of each sequence."""
        return [length - 1 for length in self.lengths]

    @property
    def is_even(self) -> bool:
        """Whether all sequences have the same length."""
        return len(set(self.lengths)) == 1
