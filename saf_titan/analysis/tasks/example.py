"""One example of a task with word-level relevance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Example:
    """A text in words, what is to be predicted after it, and which words matter for that.

    Raises ValueError where words and relevance differ in length.
    """

    words: tuple[str, ...]
    relevant: tuple[bool, ...]
    """One for each word. All false where the data say nothing of relevance: such an example has no attention mass."""
    label: str

    def __post_init__(self) -> None:
        if len(self.words) != len(self.relevant):
            raise ValueError(f"{len(self.words)} words and {len(self.relevant)} marks of relevance")

    @property
    def has_relevance(self) -> bool:
        """Whether any word is known to matter."""
        return any(self.relevant)
