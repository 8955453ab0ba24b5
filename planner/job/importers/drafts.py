"""A draft of a spec that several files fill, and how these files are read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job import hf_config
from planner.job.json_text import file_text, read_json
from planner.job.layout import AXES
from planner.job.nodes import Node, below, node_from_data
from planner.job.shorthand import Setting, with_settings
from planner.job.yaml_text import read_yaml

_WHOLE = {
    "model.hf_config", "model.decoder", "model.factory_arguments", "model.adapter", "train.inputs", "train.loss",
    "train.optimizer", "train.recompute", "train.checkpoint_load", "train.eval", "parallel.deepspeed",
    "parallel.tp.plan", "cluster.gpu",
}  # fmt: skip
"""Mappings that are one value: who says a part of it says the whole."""


class Draft:
    """What is said of a job so far."""

    def __init__(self) -> None:
        self._said: dict[str, Node] = {}
        self._by_default: dict[str, Node] = {}
        self._overriding: list[Setting] = []
        self.supposed: list[str] = []
        """What is not given, and what is assumed."""

    def say(self, path: str, node: Node) -> None:
        """A value of the spec's key `path`. Raises SpecError if another place says another."""
        first = self._said.setdefault(path, node)
        if first.plain() != node.plain():
            raise contradiction(path, first, node)

    def say_value(self, path: str, value: Any, place: str) -> None:
        """As `say`, of plain data."""
        self.say(path, node_from_data(value, place, path))

    def suppose(self, path: str, value: Any, place: str) -> None:
        """What holds where nobody says anything else."""
        self._by_default[path] = node_from_data(value, place, path)

    def join(self, other: Draft) -> None:
        """All that another draft has. Raises SpecError as `say` does."""
        for path, node in other._said.items():
            self.say(path, node)
        self._by_default |= other._by_default

    def overlay(self, document: Node) -> None:
        """All that a spec says which need not be complete."""
        for path, node in _leaves(document):
            self.say(path, node)

    def read_config(self, node: Node, folder: Path) -> Mapping[str, Any] | None:
        """As `hf_config.read`."""
        self.supposed += hf_config.describe_mirror(node.value, folder)
        return hf_config.read(node, folder)

    def replace(self, path: str, value: Any, place: str) -> None:
        """The content of what a value names."""
        self._said[path] = node_from_data(value, place, path)

    def override(self, settings: Sequence[Setting]) -> None:
        """What a person sets, whatever the files say."""
        self._overriding += settings

    def get(self, path: str) -> Node | None:
        """What is set, said, or supposed."""
        settings = (setting.node for setting in reversed(self._overriding) if setting.path == path)
        return next(settings, None) or self._said.get(path) or self._by_default.get(path)

    def has(self, *paths: str) -> bool:
        """Whether one of the keys has a value."""
        return any(self.get(path) is not None for path in paths)

    def count(self, path: str) -> int:
        """A count, 1 where it is not said or no count: the reader of specs says what is wrong with it."""
        node = self.get(path)
        return node.value if node is not None and isinstance(node.value, int) and node.value > 0 else 1

    def document(self, source: str, folder: Path | None = None) -> Node:
        """All of it, as a spec that was read; what it refers to starts at `folder`."""
        settings = []
        for path, node in {**self._by_default, **self._said}.items():
            is_whole = node.path == path or not isinstance(node.value, dict | list)
            placed = replace(node, path=path) if is_whole else node_from_data(node.plain(), node.place, path)
            settings.append(Setting(path, placed))
        return with_settings(Node({}, "", source, source), [*settings, *self._overriding], folder)


def contradiction(name: str, first: Node, second: Node) -> SpecError:
    """Two places that say different things of one."""
    here, there = (
        str(node.plain())[:200] if isinstance(node.value, dict | list) else node.summary for node in (first, second)
    )
    return SpecError(
        f"{name} is {here} here, and {there} at {second.place}",
        allowed="one value, wherever it is said",
        remedy="make them the same, or delete one of them",
        place=first.place,
    )


def unite_drafts(first: Mapping[str, Node], second: Mapping[str, Node]) -> dict[str, Node]:
    """What both say. Raises SpecError where they say different things."""
    for name in first:
        if name in second and first[name].plain() != second[name].plain():
            raise contradiction(name, first[name], second[name])
    return {**first, **second}


def _leaves(node: Node) -> Iterator[tuple[str, Node]]:
    section, _, last = node.path.rpartition(".")
    if isinstance(node.value, dict) and node.path not in _WHOLE:
        for child in node.value.values():
            yield from _leaves(child)
    elif section == "parallel" and last in AXES:
        path = below(node.path, "degree")
        yield path, replace(node, path=path)
    elif node.path:
        yield node.path, node


_MOST_BYTES = 2**20


def read_yaml_file(path: Path, writer: str) -> Node:
    """The mapping in a YAML file. Raises SpecError; `writer` says in errors what makes such files."""
    return _require_mapping(read_yaml(_text(path, writer), str(path)), writer)


def read_json_file(path: Path, writer: str) -> Node:
    """The object in a JSON file, with lines and columns. Raises SpecError."""
    text, source = _text(path, writer), str(path)
    data = read_json(text, source)
    node = None
    with contextlib.suppress(SpecError):
        node = read_yaml(text, source)  # JSON is YAML in most cases, and this reader knows where each value stands
    if node is None or node.plain() != data:
        node = node_from_data(data, source)
    return _require_mapping(node, writer)


def find_named_file(node: Node, folder: Path) -> Path:
    """The regular file that a value names, links followed, within the folder. Raises SpecError."""
    written, root = str(node.value), folder.resolve()

    def fault(problem: str, remedy: str) -> SpecError:
        problem = f"{node.name} is {written[:200]!a}, {problem}"
        return SpecError(problem, allowed=f"a path within {folder}", remedy=remedy, place=node.place)

    if not written or "\0" in written or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", written):
        raise fault("which is not a file", "copy the file there")
    path = (root / written).resolve()
    if not path.is_relative_to(root):
        raise fault(f"which lies outside of {folder}", "copy it there, or give it by itself (--from-deepspeed)")
    if not path.is_file():
        remedy = (
            "copy it there (a relative path starts from the folder of the file that names it), or give it by itself"
        )
        remedy += " where it is DeepSpeed's (--from-deepspeed FILE)"
        raise fault(f"and there is no such file in {folder}", remedy)
    return folder / path.relative_to(root)


def _text(path: Path, writer: str) -> str:
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise SpecError(
            f"{path} is larger than 1 MiB",
            allowed=f"a file that {writer}: a few KiB",
            remedy="look whether this is the file you meant",
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        raise SpecError(f"{path} is not a regular file", allowed=f"a file that {writer}")
    return file_text(path, str(path))


def _require_mapping(node: Node, writer: str) -> Node:
    if not isinstance(node.value, dict):
        raise SpecError(
            f"the file holds {node.summary}",
            allowed="one mapping of keys to values",
            remedy=f"give the file that {writer}",
            place=node.place,
        )
    return node
