"""What CI may skip (tests/allowed_skips.txt), and what was skipped besides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parents[1] / "allowed_skips.txt"


@dataclass(frozen=True, slots=True)
class AllowedSkips:
    """Tests of a file that may be skipped for a reason, at most so many in one run."""

    file: str
    reason: str
    most: int

    def allows(self, file: str, reason: str) -> bool:
        return file == self.file and re.search(self.reason, reason) is not None


def read_allowed(text: str) -> list[AllowedSkips]:
    """The lines `file | reason | most`; a reason is a pattern, and may have the sign between the columns."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [(*line.split(" | ", 1)[:1], *line.split(" | ", 1)[1].rsplit(" | ", 1)) for line in lines]
    return [AllowedSkips(file, reason, int(most)) for file, reason, most in rows]


def new_skips(skipped: Iterable[tuple[str, str]], allowed: Sequence[AllowedSkips]) -> list[str]:
    """Sentences on what is not allowed, of names of tests (or files that were skipped as a whole) with reasons."""
    found, counts = [], dict.fromkeys(allowed, 0)
    for name, reason in sorted(set(skipped)):
        line = next((line for line in allowed if line.allows(name.partition("::")[0], reason)), None)
        if line is None:
            found.append(f"{name} is skipped: {reason}")
        else:
            counts[line] += 1
    return found + [
        f"{line.file}: {count} tests are skipped for `{line.reason}`, and {line.most} may be"
        for line, count in counts.items()
        if count > line.most
    ]
