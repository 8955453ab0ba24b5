"""A draft of a spec that several files fill: every value with its place, and no two that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.job.nodes import Node, below, node_from_data
from planner.job.overrides import Setting, with_settings

_WHOLE = {
    "model.hf_config", "model.decoder", "model.factory_arguments", "model.adapter", "train.inputs", "train.loss",
    "train.optimizer", "train.recompute", "train.checkpoint_load", "train.eval", "parallel.deepspeed",
    "parallel.tp.plan", "cluster.gpu",
}  # fmt: skip
"""Mappings that are one value: who says a part of it says the whole."""
_DEGREES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")


class Draft:
    """What is said of a job so far."""

    def __init__(self) -> None:
        self._said: dict[str, Node] = {}
        self._by_default: dict[str, Node] = {}
        self._overriding: list[Setting] = []

    def say(self, path: str, node: Node) -> None:
        """A value of the spec's key `path`. Raises SpecError if another place says another."""
        found = self._said.setdefault(path, node)
        if found.plain() != node.plain():
            raise contradiction(path, found, node)

    def say_value(self, path: str, value: Any, place: str) -> None:
        """As `say`, of plain data."""
        self.say(path, node_from_data(value, place, path))

    def suppose(self, path: str, value: Any, place: str) -> None:
        """What holds where nobody says anything else."""
        self._by_default[path] = node_from_data(value, place, path)

    def overlay(self, document: Node) -> None:
        """All that a spec says which need not be complete."""
        for path, node in _leaves(document):
            self.say(path, node)

    def replace(self, path: str, value: Any, place: str) -> None:
        """The content of what a value names."""
        self._said[path] = node_from_data(value, place, path)

    def override(self, settings: Sequence[Setting]) -> None:
        """What a person sets, whatever the files say."""
        self._overriding += settings

    def get(self, path: str) -> Node | None:
        """What is set, said, or supposed."""
        for each in reversed(self._overriding):
            if each.path == path:
                return each.node
        return self._said.get(path) or self._by_default.get(path)

    def has(self, *paths: str) -> bool:
        return any(self.get(path) is not None for path in paths)

    def document(self, source: str, folder: Path | None = None) -> Node:
        """All of it, as a spec that was read; what it refers to starts at `folder`."""
        tree: dict[str, Any] = {}
        for path, node in {**self._by_default, **self._said}.items():
            *parents, last = path.split(".")
            level = tree
            for parent in parents:
                level = level.setdefault(parent, {})
                if isinstance(level, Node):
                    raise level.is_error(allowed="a mapping", remedy=f"write what it holds, such as {last}")
            level[last] = node if node.path == path else _at(node, path)
        return with_settings(_mapping(tree, source, ""), self._overriding, folder)


def contradiction(name: str, first: Node, second: Node) -> SpecError:
    """Two places that say different things of one."""
    return SpecError(
        f"{name} is {_format_value(first)} here, and {_format_value(second)} at {_where(second)}",
        allowed="one value, wherever it is said",
        remedy="make them the same, or delete one of them",
        place=_where(first),
    )


def unite_drafts(first: Mapping[str, Node], second: Mapping[str, Node]) -> dict[str, Node]:
    """What both say. Raises SpecError where they say different things."""
    for name in first.keys() & second.keys():
        if first[name].plain() != second[name].plain():
            raise contradiction(name, first[name], second[name])
    return {**first, **second}


def _format_value(node: Node) -> str:
    return node.summary if not isinstance(node.value, dict | list) else str(node.plain())[:200]


def _where(node: Node) -> str:
    return node.place


def _at(node: Node, path: str) -> Node:
    if isinstance(node.value, dict | list):
        return node_from_data(node.plain(), node.place, path)
    return replace(node, path=path)


def _mapping(tree: Mapping[str, Any], source: str, path: str) -> Node:
    children = {
        key: value if isinstance(value, Node) else _mapping(value, source, below(path, key))
        for key, value in tree.items()
    }
    return Node(children, path, source, source)


def _leaves(node: Node) -> Iterator[tuple[str, Node]]:
    section, _, last = node.path.rpartition(".")
    if isinstance(node.value, dict) and node.path not in _WHOLE:
        for child in node.value.values():
            yield from _leaves(child)
    elif section == "parallel" and last in _DEGREES:
        path = below(node.path, "degree")
        yield path, replace(node, path=path)
    elif node.path:
        yield node.path, node
