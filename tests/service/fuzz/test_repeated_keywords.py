"""Every reader of text is given its own keywords for 2 MiB (in CI 512 KiB): its work grows with the text, no faster.

A text of one keyword is what patterns with several quantifiers, searches that begin again at each hit and lists that
are shortened from their front take the square of. A reader may refuse a text for its length.
"""

from __future__ import annotations

import gc
import signal
import time
from typing import Any

import pytest
from soak import share
from text_readers import TEXT_READERS

from planner.errors import PlannerError
from planner.units import KIB, MIB

SIZE = share(2 * MIB, in_ci=512 * KIB)
PART = 4
MOST_RATIO = 2.5 * PART
USUAL_SECONDS, MOST_SECONDS = SIZE / MIB, 60
"""A microsecond for a character is a common pace on a busy machine; a reader that takes the square takes minutes."""


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        pytest.param(name, word, id=f"{name}, {word[:30]!a}")
        for name, (_, words) in TEXT_READERS.items()
        for word in words
    ],
)
def test_four_times_the_keywords_take_four_times_as_long(name: str, keyword: str) -> None:
    whole = seconds_of(name, keyword, SIZE)
    if whole > USUAL_SECONDS:
        part = min(seconds_of(name, keyword, SIZE // PART) for _ in range(2))
        assert whole <= MOST_RATIO * part


def test_a_reader_that_takes_the_square_of_a_text_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXT_READERS, "square", (lambda text: [text[start:] for start in range(len(text))][:0], "a"))
    monkeypatch.setitem(globals(), "SIZE", 32 * KIB)
    monkeypatch.setitem(globals(), "USUAL_SECONDS", 0.0)

    with pytest.raises(AssertionError):
        test_four_times_the_keywords_take_four_times_as_long("square", "a")


def seconds_of(name: str, keyword: str, size: int) -> float:
    """The processor time of one answer: a value, or a PlannerError. What takes longer than a minute is a failure."""
    reader, _ = TEXT_READERS[name]
    text = keyword * (size // len(keyword))
    gc.disable()  # its passes look through all that the tests of this process hold
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    began = time.process_time()
    try:
        reader(text)
    except (PlannerError, ValueError):  # what reads a size or a set of ranks says so to its caller
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.enable()
    return time.process_time() - began


def _stop(*_: Any) -> None:
    pytest.fail(f"no answer after {MOST_SECONDS} seconds")
