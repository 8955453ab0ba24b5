"""Names that someone may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from planner.job.size_limits import LONGEST_NAME


def nearest(name: str, known: Iterable[str], *, count: int = 1) -> list[str]:
    """Up to `count` of the `known` names that begin with `name` or look like it, the likeliest first; in any case."""
    if len(name) > LONGEST_NAME:
        return []
    folded, by_folded = name.casefold(), {other.casefold(): other for other in known}
    longer = [other for other in by_folded if len(folded) > 1 and other.startswith(folded)]
    alike = difflib.get_close_matches(folded, by_folded, n=count, cutoff=0.5)
    return [by_folded[other] for other in dict.fromkeys(longer + alike)][:count]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name; empty if nothing known is near."""
    found = nearest(name, known)
    return f"did you mean `{found[0]}`?" if found else ""
