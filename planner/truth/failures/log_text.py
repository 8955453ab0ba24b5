"""The text of a log without what terminals, editors and log collectors add to it.

Words are looked for without white space, so that a message is found however its lines were broken, and what is found is
told by its line and quoted as it stands in the log.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

from planner.truth.failures.rules import Searched

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_ESCAPES = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033|\\e|\^\[|␛)(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07\n]{0,200}\x07)")
"""Colours and cursor movements, as bytes of a terminal or written out (JSON, `cat -v`)."""
_ENTITIES = {"&quot;": '"', "&#34;": '"', "&#39;": "'", "&#x27;": "'", "&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ENTITY = re.compile("|".join(_ENTITIES))
_DRAWN = str.maketrans("\u2018\u2019\u201c\u201d\u2032│┃║\0", "''\"\"'    ")
"""Quotes of a word processor, and what a panel draws at both sides of a text."""
_PREFIXES = re.compile(
    r"(?:\s*(?:"
    r"(?:>\s?)+"  # quoted in a thread
    r"|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?: -)?\s"  # docker, kubectl
    r"|\d{1,5}: "  # srun --label
    r"|\((?:[\w.:]{1,60} )?pid=\d{1,10}(?:, ip=[\d.]{1,40})?\)\s"  # Ray
    r"|\[(?:rank|default|trainer|worker-?)\d{1,6}\]:"  # torchrun
    r"|\[\d{1,6},\d{1,6}\]<std(?:err|out)>:"  # mpirun --tag-output
    r"|(?:[\w.-]{1,80}\s*\|\s)"  # docker compose, stern
    r"|[\w.-]{0,60}\d: "  # pdsh
    r")){0,4}"
)
_TOKEN = re.compile(r"\S+")
_WRITTEN_BREAK = "\\n"
"""A log inside of JSON has its line breaks written out."""


def decode(content: bytes) -> str:
    """The text of a log's bytes: UTF-16 where a mark or its zeros show it, else UTF-8, unreadable bytes replaced."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    # Windows PowerShell's redirection without its mark: of Latin text every second byte is zero.
    beginning = content[:2000]
    if beginning.count(0) * 3 > len(beginning):
        return content.decode(
            "utf-16-le" if beginning[1::2].count(0) > beginning[::2].count(0) else "utf-16-be", "replace"
        )
    return content.decode("utf-8", "replace")


class LogText:
    """`text` has the lines of the log; `squashed` has no white space and no prefixes of lines."""

    def __init__(self, raw: str) -> None:
        text = _ESCAPES.sub("", raw.replace("\r\n", "\n").replace("\r", " ").replace("\b", ""))
        self.text = _ENTITY.sub(lambda match: _ENTITIES[match[0]], text).translate(_DRAWN)
        self.lines = self.text.split("\n")
        self._line_starts = [0, *accumulate(len(line) + 1 for line in self.lines)]
        self._broken = self.text.replace(_WRITTEN_BREAK, "  ").split("\n")
        ends = [match.end() for match in map(_PREFIXES.match, self.lines) if match is not None]
        self._prefixes = ends
        squashed = ["".join(line[end:].split()) for line, end in zip(self._broken, ends, strict=True)]
        self.squashed = "".join(squashed)
        self.sentences, self.written = Searched(self.squashed), Searched(self.text)
        self._squashed_starts = [0, *accumulate(map(len, squashed))]
        self._tokens: tuple[int, list[int], list[int]] = (-1, [], [])

    def line_of(self, position: int) -> int:
        """The line, from 1, of a position of `squashed`."""
        return bisect_right(self._squashed_starts, position)

    def line_at(self, place: int) -> int:
        """The line, from 1, of a position of `text`."""
        return bisect_right(self._line_starts, place)

    def original(self, position: int) -> int:
        """The position in `text` of a position of `squashed`."""
        line = self.line_of(position) - 1
        if self._tokens[0] != line:
            tokens = list(_TOKEN.finditer(self._broken[line], self._prefixes[line]))
            ends = accumulate(len(token[0]) for token in tokens)
            self._tokens = line, [0, *ends], [token.start() for token in tokens]
        _, starts, places = self._tokens
        offset = position - self._squashed_starts[line]
        token = min(bisect_right(starts, offset), len(places)) - 1
        return self._line_starts[line] + places[token] + offset - starts[token]

    def quote(self, start: int, end: int, most: int) -> str:
        """What stands from one position of `squashed` to another, with single spaces, at most `most` characters."""
        begin = self.original(start)
        return self._quote(begin, self.original(end - 1) + 1 if end > start else begin, most)

    def lines_of(self, first: int, last: int, most: int) -> str:
        """The lines in which stands what goes from one position of `text` to another; of long ones the part around."""
        begin = max(self._line_starts[self.line_at(first) - 1], first - most // 3)
        return self._quote(begin, self._line_starts[self.line_at(last)] - 1, most)

    def rest_of_line(self, start: int, most: int) -> str:
        """What stands from a position of `squashed` to the end of its line."""
        return self._quote(self.original(start), self._line_starts[self.line_of(start)] - 1, most)

    def _quote(self, begin: int, end: int, most: int) -> str:
        return " ".join(self.text[begin : min(end, begin + 2 * most)].split())[:most]
