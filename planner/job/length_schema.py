"""How long a job's sequences are, where they are not all of one length, with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of sequences as percentiles or as a histogram, up to `train.sequence_length`; each batch is padded to its
    longest."""

    min: int = 1
    """Tokens of the shortest sequence, beside percentiles."""
    p50: int = 0
    """Half of the sequences are no longer; 0: not said. Between two percentiles lengths are taken as evenly spread."""
    p90: int = 0
    """Nine in ten sequences are no longer; 0: not said."""
    p95: int = 0
    """19 in 20 sequences are no longer; 0: not said."""
    p99: int = 0
    """99 in 100 sequences are no longer; 0: not said."""
    histogram: Mapping[str, float] = field(default_factory=dict)
    """In place of percentiles: lengths and their shares, which add up to 1 (`{512: 0.6, 2048: 0.3, 8192: 0.1}`)."""
    batches: tuple[int, ...] = ()
    """In place of a distribution: the length of every batch of a run, in order."""
    pad_to_multiple_of: int = 1
    """Batches are padded to a multiple of so many tokens."""
    steps: int = 2000
    """Optimizer steps whose batches are drawn and replayed; `batches` bring their own number."""
    seed: int = 0
    """The draw begins with it."""


PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Keys, and the share of sequences that are no longer."""


def tokens_of(text: str) -> int:
    """The tokens that a key of a histogram stands for (`512`, `4k`); 0 for what is no number of tokens."""
    number = text[:-1] if text[-1:] in ("k", "K") else text
    if not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number)):
        return 0
    return int(number) * (1024 if number != text else 1)
