"""Numbers as people read them."""

from __future__ import annotations


def amount(x: float) -> str:
    """A number with a decimal prefix: `1.2 M`; a dash for one that is not known."""
    if x != x:
        return "–"
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g} {prefix}"
    return f"{x:.3g} "


def ratio(a: float, b: float) -> str:
    """How many times b is in a: `3.2×`."""
    if not b > 0:
        return "–"
    return f"{a / b:,.0f}×" if a >= 100 * b else f"{a / b:.3g}×"


def plural(count: int, word: str) -> str:
    """`1 input`, `2 inputs`."""
    ending = "" if count == 1 else "s"
    return f"{count} {word[:-1]}ies" if word.endswith("y") and count != 1 else f"{count} {word}{ending}"
