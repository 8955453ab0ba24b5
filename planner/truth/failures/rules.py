"""Rules that find sentences in a log, and the search that leaves out all of a text in which a rule has nothing to find.

Every rule has words that each of its matches contains; they are derived from its regular expression, as is the length
of its longest match. Only what stands so near to the rarest of these words is given to the regular expression: a text
without them costs a plain search for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# The standard library has no public way to ask what a regular expression consists of.
from re import _constants as parts  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from planner.truth.failures.messages import Cause, Form
from planner.units import KIB

_SHORTEST_WORD = 3
_OFTEN = ("memory", "process", "failed")
"""Words that logs of healthy jobs have in every line: others are looked for first, however short."""
_FEW = 8
"""Places of a word at which no rarer one is looked for."""
_BESIDE = 64
"""Characters beside the longest match, for what is looked at before and after it without being a part of it."""
_SIZE = r"(?P<NAME>\d[\d,]{0,24}(?:\.\d{1,9})?)(?P<NAME_unit>[KMGTkmgt]i?[bB]?|bytes|byte|B)?"
_UNITS = {"b": 1, "k": KIB, "m": KIB**2, "g": KIB**3, "t": KIB**4}
"""By the first letter: torch's MPS, PaddlePaddle and PBS, too, write GB and count 2**30."""


class Searched:
    """A text in which many rules look for their words: each word's places are looked up once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.folded = text.lower()
        if len(self.folded) != len(text):  # one letter of Turkish becomes two
            self.folded = text.replace("\u0130", "I").lower()
        self._places: dict[str, list[int]] = {}

    def places(self, word: str) -> list[int]:
        if word not in self._places:
            found = re.finditer(re.escape(word), self.folded) if word in self.folded else ()
            self._places[word] = [match.start() for match in found]
        return self._places[word]


class Words:
    """A regular expression of any case for text without white space, written with the white space that a reader sees;
    `@tried` is a size with its unit, that `read_size` reads."""

    def __init__(self, pattern: str) -> None:
        sizes = re.sub(r"@(\w+)", lambda match: _SIZE.replace("NAME", match[1]), pattern)
        self._compile("".join(sizes.split()), re.IGNORECASE)

    def _compile(self, pattern: str, flags: int) -> None:
        self.pattern = re.compile(pattern, flags)
        parsed = parser.parse(pattern, flags)
        self.longest = int(parsed.getwidth()[1])
        clauses = sorted(_clauses(parsed), key=_rarity, reverse=True)
        self.clauses = [clause for clause in clauses if min(map(len, clause)) >= _SHORTEST_WORD]

    def find(self, searched: Searched) -> Iterator[re.Match[str]]:
        """What `finditer` finds."""
        for begin, end in self.windows(searched):
            yield from self.pattern.finditer(searched.text, begin, end)

    def windows(self, searched: Searched) -> Iterator[tuple[int, int]]:
        """First and last places of what the regular expression is given; they do not overlap."""
        begin = end = 0
        reach = self.longest + _BESIDE
        for place in self._rarest(searched):
            if place - reach > end:
                yield begin, end
                begin = place - reach
            end = min(place + reach, len(searched.text))
        yield max(begin, 0), end

    def _rarest(self, searched: Searched) -> list[int]:
        """The places of the words of one clause, in their order; none where the text lacks another clause's."""
        fewest: list[int] | None = None
        for clause in self.clauses:
            places = [place for word in clause for place in searched.places(word)]
            if fewest is None or len(places) < len(fewest):
                fewest = places
            if len(fewest) <= _FEW:
                break
        return sorted(fewest or ())

    def first(self, searched: Searched) -> re.Match[str] | None:
        """The first of a short text."""
        if any(all(word not in searched.folded for word in clause) for clause in self.clauses):
            return None
        return self.pattern.search(searched.text)


class Lines(Words):
    """A regular expression for the text with its lines, which the white space around words is a part of."""

    def __init__(self, pattern: str) -> None:
        self._compile(pattern, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a sentence of somebody says: the form of a failure on a GPU, or the cause of one on a host."""

    says: Form | Cause
    who: str
    words: Words
    unit: int = 1
    """What figures are counted in that are written without a unit."""


Found = tuple[int, int, Rule, re.Match[str]]


def apart(found: Iterable[Found]) -> Iterator[Found]:
    """Without what is a part of what was found before: first and last position, rule and match, in their order."""
    end = -1
    for first, last, rule, match in sorted(found, key=lambda each: (each[0], -each[1])):
        if first > end:
            end = last
            yield first, last, rule, match


def _clauses(parsed: Iterable[Any]) -> Iterator[frozenset[str]]:
    """Sets of words: every match contains one of each set."""
    run = ""
    for part, content in parsed:
        if part is parts.LITERAL:
            run += chr(content).lower()
            continue
        if run:
            yield frozenset((run,))
            run = ""
        if part is parts.SUBPATTERN:
            yield from _clauses(content[-1])
        elif part in (parts.MAX_REPEAT, parts.MIN_REPEAT) and content[0] > 0:
            yield from _clauses(content[2])
        elif part is parts.BRANCH:
            longest = [max(_clauses(branch), key=_rarity, default=frozenset()) for branch in content[1]]
            if all(longest):
                yield frozenset().union(*longest)
    if run:
        yield frozenset((run,))


def _rarity(clause: frozenset[str]) -> int:
    """The longer a word, the rarer it is."""
    return min((len(word) if word not in _OFTEN else _SHORTEST_WORD for word in clause), default=0)


def read_size(match: re.Match[str], name: str, unit: int = 1) -> tuple[int, int] | None:
    """Bytes, and half of the last printed digit; None where it is not told. `unit` counts what has none beside it."""
    if not (written := match.groupdict().get(name)):
        return None
    if letter := (match.groupdict().get(f"{name}_unit") or "")[:1]:
        unit = _UNITS[letter.lower()]
    whole, _, decimals = written.replace(",", "").partition(".")
    count = int(whole + decimals) * unit // 10 ** len(decimals)
    return count, unit // (2 * 10 ** len(decimals)) if decimals else 0
