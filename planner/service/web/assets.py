"""Finds a file of the page by its name, with its media type and a tag that changes with its content."""

from __future__ import annotations

import hashlib
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
_FOLDERS = ("page", "swagger-ui")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is answered. `etag` is as HTTP wants it, in quotes."""

    content: bytes
    media_type: str
    etag: str


def find(name: str) -> Asset | None:
    return _read(name) if name in names() else None


@cache
def names() -> frozenset[str]:
    listed = ((folder, file.name) for folder in _FOLDERS for file in _root().joinpath(folder).iterdir())
    served = (f"{folder}/{name}" for folder, name in listed if _suffix(name) in MEDIA_TYPES)
    return frozenset([*served, CATEGORY_COLORS])


@cache
def _read(name: str) -> Asset:
    if name == CATEGORY_COLORS:
        dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {css_variables(DARK)} }} }}"
        content = f":root {{ {css_variables(LIGHT)} }}\n{dark}\n".encode()
    else:
        content = _root().joinpath(name).read_bytes()
    return Asset(content, MEDIA_TYPES[_suffix(name)], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _root() -> Traversable:
    return resources.files("planner.service.web")


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]
