"""Counts with a suffix, as command lines read and print them: 250K, 100M, 1.5G."""

_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_count(text: str) -> int:
    """Return the number that `text` stands for; the suffixes K, M, G and T are powers of 1000.

    Raises:
        ValueError: if `text` is not a non-negative whole number, with or without a suffix, below 2**63.

    >>> parse_count("100M"), parse_count("1.5k"), parse_count("7")
    (100000000, 1500, 7)
    """
    number, suffix = text.strip().upper(), ""
    if number and number[-1] in _FACTORS:
        number, suffix = number[:-1], number[-1]
    try:
        value = float(number) * _FACTORS[suffix]
    except ValueError:
        value = -1.0
    if not (0 <= value < 2**63 and value == int(value)):
        raise ValueError(f"{text!r}: expected a whole number such as 4096, 250K, 100M or 1.5G")
    return int(number) * _FACTORS[suffix] if number.isdigit() else int(value)


def format_count(value: float) -> str:
    """Return `value` as text with three digits and a suffix.

    >>> format_count(1_234_567), format_count(950), format_count(999_999)
    ('1.23M', '950', '1M')
    """
    for suffix in ("T", "G", "M", "K"):
        # 0.9995: 999,950 would be rounded to 1000K, so it is written as 1M
        if value >= 0.9995 * _FACTORS[suffix]:
            return f"{value / _FACTORS[suffix]:.3g}{suffix}"
    return f"{value:.3g}"


def check_range(low: int, high: int, **values: int) -> None:
    """Raises ValueError for the first of the named values that is not in `low .. high`, both included."""
    for name, value in values.items():
        if not low <= value <= high:
            raise ValueError(f"{name}={value}: must be in {low} .. {high}")
