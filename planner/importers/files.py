"""Reads files that a file or a person names: bounded text, and only from the folder of the one that names them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.json_text import read_json
from planner.job.nodes import Node, node_from_data
from planner.job.text_files import file_text
from planner.job.yaml_text import read_yaml

_MOST_BYTES = 2**20


def read_yaml_file(path: Path, writer: str) -> Node:
    """The mapping in a YAML file. Raises SpecError; `writer` says in errors what makes such files."""
    return _mapping(read_yaml(_text(path, writer), str(path)), writer)


def read_json_file(path: Path, writer: str) -> Node:
    """The object in a JSON file, with lines and columns. Raises SpecError."""
    text, source = _text(path, writer), str(path)
    data = read_json(text, source)
    return _mapping(_with_places(text, source, data), writer)


def named_by(node: Node, folder: Path) -> Path:
    """The regular file that a value names, links followed, within the folder. Raises SpecError."""
    written = str(node.value)
    allowed = f"a path within {folder}"
    if not written or "\0" in written or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", written):
        raise SpecError(
            f"{node.name} is {written[:200]!a}, which is no file",
            allowed=allowed,
            remedy="copy the file there",
            place=node.place,
        )
    root = folder.resolve()
    path = (root / written).resolve()
    if not path.is_relative_to(root):
        raise SpecError(
            f"{node.name} is {written[:200]!a}, which lies outside of {folder}",
            allowed=allowed,
            remedy="copy it there, or give it by itself (--from-deepspeed)",
            place=node.place,
        )
    if not path.is_file():
        raise SpecError(
            f"{node.name} is {written[:200]!a}, and there is no such file in {folder}",
            allowed=allowed,
            remedy="a relative path starts from the folder of the file that names it",
            place=node.place,
        )
    return folder / path.relative_to(root)


def _text(path: Path, writer: str) -> str:
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise SpecError(
            f"{path} is larger than 1 MiB",
            allowed=f"a file that {writer}: a few KiB",
            remedy="look whether this is the file you meant",
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        raise SpecError(f"{path} is no regular file", allowed=f"a file that {writer}")
    return file_text(path, str(path))


def _with_places(text: str, source: str, data: Any) -> Node:
    """JSON is YAML in most cases, and the reader of YAML knows where each value stands."""
    try:
        node = read_yaml(text, source)
    except SpecError:
        return node_from_data(data, source)
    return node if node.plain() == data else node_from_data(data, source)


def _mapping(node: Node, writer: str) -> Node:
    if not isinstance(node.value, dict):
        raise SpecError(
            f"the file holds {node.summary}",
            allowed="one mapping of keys to values",
            remedy=f"give the file that {writer}",
            place=node.place,
        )
    return node
