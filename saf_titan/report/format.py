"""Numbers as text, in one form for the whole report."""

import math

from saf_titan.report.rows import perplexity


def loss_text(loss: float) -> str:
    """A loss in nats per token with its perplexity: "3.7500 (perplexity 42.52)"."""
    return f"{loss:.4f} ({perplexity_text(loss)})"


def perplexity_text(loss: float) -> str:
    """The perplexity of a loss in nats per token: "perplexity 42.51", "perplexity 1,744", "perplexity 3.1M"."""
    value = perplexity(loss)
    if not value < 1e5:
        return f"perplexity {short(value)}"
    return f"perplexity {value:,.0f}" if value >= 1000 else f"perplexity {value:.4g}"


def seconds_text(seconds: float) -> str:
    """A time with three digits: "0.412 s", "95.2 s", "12 min"."""
    if seconds >= 100:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s"


def short(number: float) -> str:
    """A number with three digits and a unit: "42.5", "812", "22.1K", "1.2M", "3B"."""
    if not math.isfinite(number):
        return str(number)
    if number >= 1e15:
        return f"{number:.1e}"
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def count(number: int, singular: str) -> str:
    """A number with its noun, which takes an s in the plural: "1 head", "8 heads"."""
    return number_of(number, singular, f"{singular}s")


def number_of(number: int, singular: str, plural: str) -> str:
    """A number with its noun, where the plural is irregular."""
    return f"{number:,} {singular if number == 1 else plural}"
