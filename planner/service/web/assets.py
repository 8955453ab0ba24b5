"""Finds a file of the page by its name, with its media type and a tag that changes with its content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from planner.report.style import DARK, LIGHT, css_variables

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""By suffix. A file of another suffix is not served."""
CATEGORY_COLORS = "page/category-colors.css"
"""Made of planner.report.style, where the colours of charts are."""
_FOLDERS = ("page", "swagger-ui")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is answered. `etag` is as HTTP wants it, in quotes."""

    content: bytes
    media_type: str
    etag: str


def find(name: str) -> Asset | None:
    """The file of that name, such as `page/page.css`; None where there is none."""
    return _read(name) if name in names() else None


@cache
def names() -> frozenset[str]:
    """Of all files that are served."""
    found = (f"{folder}/{name}" for folder in _FOLDERS for name in _files(folder))
    return frozenset([*found, CATEGORY_COLORS])


@cache
def _read(name: str) -> Asset:
    """Kept, for there are only so many names."""
    content = _category_colors() if name == CATEGORY_COLORS else _folder().joinpath(name).read_bytes()
    return Asset(content, MEDIA_TYPES[_suffix(name)], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _files(folder: str) -> Mapping[str, Traversable]:
    listed = _folder().joinpath(folder).iterdir()
    return {each.name: each for each in listed if _suffix(each.name) in MEDIA_TYPES}


def _folder() -> Traversable:
    return resources.files("planner.service.web")


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]


def _category_colors() -> bytes:
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}"
    return f":root {{ {css_variables(LIGHT)} }}\n{dark}\n".encode()
