"""Numbers as text, in one form for the whole report."""

import math

from saf_titan.report.rows import perplexity


def loss_text(loss: float) -> str:
    """Return a loss in nats per token as text, with its perplexity: "3.7500 (perplexity 42.52)"."""
    return f"{loss:.4f} ({perplexity_text(loss)})"


def perplexity_text(loss: float) -> str:
    """Return the perplexity of a loss in nats per token as text: "perplexity 42.51", "perplexity 1,744"."""
    value = perplexity(loss)
    if not value < 1e5:
        return f"perplexity {short(value)}"
    return f"perplexity {value:,.0f}" if value >= 1000 else f"perplexity {value:.4g}"


def seconds_text(seconds: float) -> str:
    """Return a time as text with three digits: "0.412 s", "95.2 s", "12 min"."""
    if seconds >= 100:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s"


def short(number: float) -> str:
    """Return a number as text with three digits and a unit: "42.5", "812", "22.1K", "1.2M", "3B"."""
    if not math.isfinite(number):
        return str(number)
    if number >= 1e15:
        return f"{number:.1e}"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def count(number: int, singular: str) -> str:
    """Return a number with its noun, whose plural ends in s: "1 head", "8 heads"."""
    return number_of(number, singular, f"{singular}s")


def number_of(number: int, singular: str, plural: str) -> str:
    """Return a number with its noun, in the singular or in the given plural."""
    return f"{number:,} {singular if number == 1 else plural}"
