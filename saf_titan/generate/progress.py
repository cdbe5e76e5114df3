"""How far each sequence of a batch has come; the layers of a model share one of these."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Where the tokens of the present forward stand in their sequences.

    Prompts are padded at their right end, so position j of a sequence is entry j of its cache, whatever the lengths of
    the other prompts. What a shorter sequence has behind its end gets the weight zero.
    """

    capacity: int
    """Tokens that each sequence may come to."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of each sequence, those of the present forward included."""
    is_prefill: bool = True
    """The present forward computes the prompts, and not one token a sequence."""

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
