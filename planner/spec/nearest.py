"""Names that someone may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, count: int = 1) -> list[str]:
    """Up to `count` of the `known` names that look like `name`, the likeliest first; case does not count."""
    by_folded = {other.casefold(): other for other in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=0.5)
    return [by_folded[folded] for folded in found]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name; empty if nothing known is near."""
    found = nearest(name, known)
    return f"did you mean `{found[0]}`?" if found else ""
