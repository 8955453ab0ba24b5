"""Finds a file of the page by its name, with its media type and a tag that changes with its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from planner.report.style import category_colors

MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""By suffix. A file of another suffix is not served."""
CATEGORY_COLORS = "page/category-colors.css"
_FOLDERS = (("planner.service.web", "page"), ("planner.report", "page"), ("planner.service.web", "swagger-ui"))
"""Package and folder: what the page draws with is the report's too."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is answered. `etag` is as HTTP wants it, in quotes."""

    content: bytes
    media_type: str
    etag: str


def find(name: str) -> Asset | None:
    return _read(name) if name in names() else None


def names() -> frozenset[str]:
    return frozenset([*_files(), CATEGORY_COLORS])


@cache
def _files() -> dict[str, Traversable]:
    listed = (
        (folder, file) for package, folder in _FOLDERS for file in resources.files(package).joinpath(folder).iterdir()
    )
    return {f"{folder}/{file.name}": file for folder, file in listed if _suffix(file.name) in MEDIA_TYPES}


@cache
def _read(name: str) -> Asset:
    content = category_colors().encode() if name == CATEGORY_COLORS else _files()[name].read_bytes()
    return Asset(content, MEDIA_TYPES[_suffix(name)], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]
