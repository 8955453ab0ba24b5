"""How text looks on a terminal, and the colours of categories wherever memory is drawn."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from planner.events import Category
from planner.units import GIB, TIB, show_bytes

_EIGHTHS = " ▏▎▍▌▋▊▉"
_COLORS = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33",
    "parameter": "38;5;67", "gradient": "38;5;137", "bucket": "38;5;173", "optimizer_state": "38;5;103",
    "activation": "38;5;108", "temporary": "38;5;144", "workspace": "38;5;96", "input": "38;5;73",
    "communication": "38;5;131", "other": "38;5;245",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """`width` in characters, at least 72; `unicode` False draws with ASCII only; `color` True uses ANSI sequences."""

    width: int = 100
    unicode: bool = True
    color: bool = False

    def paint(self, text: str, color: str) -> str:
        return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if self.color and text else text

    @property
    def dot(self) -> str:
        return " · " if self.unicode else " | "

    @property
    def times(self) -> str:
        return "×" if self.unicode else "x"

    def bar(self, share: float, width: int) -> str:
        """A bar of `share` of `width` characters, to an eighth of a character where that can be drawn."""
        if not self.unicode:
            return "#" * max(round(share * width), 1 if share > 0 else 0)
        eighths = max(round(share * width * 8), 1 if share > 0 else 0)
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()

    def stack(self, parts: Sequence[tuple[str, str, int]], width: int) -> str:
        """Parts of a whole side by side as `(character, ASCII character, size)`, exactly `width` wide."""
        whole, drawn, line = sum(size for _, _, size in parts), 0, ""
        upto = 0
        for character, plain, size in parts:
            upto += size
            end = round(upto / whole * width) if whole else 0
            line += (character if self.unicode else plain) * (end - drawn)
            drawn = end
        return line


def style_of(stream: TextIO, environ: Mapping[str, str], columns: int) -> Style:
    """The style for a stream: colours only on a terminal and without NO_COLOR, ASCII where the encoding asks for it."""
    terminal = stream.isatty() and environ.get("TERM") != "dumb"
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return Style(
        width=max(72, min(columns, 120)),
        unicode=encoding.startswith("utf"),
        color=terminal and not environ.get("NO_COLOR"),
    )


def wrap(text: str, width: int) -> list[str]:
    """Lines of this width; a number stays with its unit."""
    glued = re.sub(r"(\d) (?=[KMGT]?i?B\b)", r"\1~", text.replace("~", "\0"))
    lines = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("~", " ").replace("\0", "~") for line in lines]


def wrap_parts(parts: Sequence[str], style: Style) -> list[str]:
    """The parts joined by dots, broken only between them."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}{style.dot}{part}" if lines[-1] else part
        if len(longer) <= style.width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return [wrapped for line in lines for wrapped in wrap(line, style.width)]


def sentence_lines(sentences: Sequence[str], style: Style) -> Iterator[str]:
    """Each sentence on lines of its own, as wide as the style."""
    return (line for sentence in sentences for line in wrap(sentence, style.width))


def shorten_to(text: str, width: int, style: Style) -> str:
    """The text, with dots in the place of what does not fit."""
    dots = "…" if style.unicode else "..."
    return text if len(text) <= width else text[: width - len(dots)] + dots


def join_lines(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


def size(count: int) -> str:
    """Bytes for a screen: GiB, a smaller unit only where GiB would show nothing, and TiB of sums."""
    return f"{count / GIB:.2f} GiB" if count == 0 or GIB // 100 <= abs(count) < TIB else show_bytes(count)


STACKED = (
    Category.PARAMETER, Category.OPTIMIZER_STATE, Category.BUCKET, Category.GRADIENT, Category.INPUT,
    Category.ACTIVATION, Category.WORKSPACE, Category.COMMUNICATION, Category.OTHER, Category.TEMPORARY,
)  # fmt: skip
"""From the bottom up: what stays longest lies lowest, so that the picture is calm."""
LIGHT = {
    Category.PARAMETER: "#4f79a8", Category.GRADIENT: "#d08a3c", Category.BUCKET: "#c2603f",
    Category.OPTIMIZER_STATE: "#8a6db1", Category.ACTIVATION: "#5a9a68", Category.TEMPORARY: "#d4b740",
    Category.WORKSPACE: "#a2627f", Category.INPUT: "#4aa3a0", Category.COMMUNICATION: "#bb4f5b",
    Category.OTHER: "#9aa0a6",
}  # fmt: skip
DARK = {
    Category.PARAMETER: "#6b97c9", Category.GRADIENT: "#d99a55", Category.BUCKET: "#d27a5b",
    Category.OPTIMIZER_STATE: "#a58cc9", Category.ACTIVATION: "#78b585", Category.TEMPORARY: "#d9c363",
    Category.WORKSPACE: "#bb809a", Category.INPUT: "#65b8b5", Category.COMMUNICATION: "#d06e79",
    Category.OTHER: "#878e97",
}  # fmt: skip


def category_colors() -> str:
    """A style sheet with the colours of categories, for light and for dark screens: `--parameter: #4f79a8; ...`."""
    light, dark = (
        " ".join(f"--{category.value}: {color};" for category, color in colors.items()) for colors in (LIGHT, DARK)
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
