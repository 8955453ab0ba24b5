"""A document as it was written: values that remember where they stand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.spec.json_text import MOST_DEPTH, special_float

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a document; `path` is its dotted key (`train.optimizer.name`), empty at the top."""

    value: Scalar | list[Node] | dict[str, Node]
    path: str
    place: str
    """Where the value stands: `job.yaml:12:7`, or the source alone where lines are not known."""
    key_place: str = ""
    """Where its key stands; empty for items of lists and for the top."""
    written: str = ""
    """A number as it was written without quotes (`2.10`), before it was read as a number."""

    @property
    def name(self) -> str:
        """How messages call the value."""
        return self.path or "the document"

    def error(self, problem: str, *, allowed: str = "", remedy: str = "") -> SpecError:
        """A fault of this value."""
        return SpecError(f"{self.name} {problem}", allowed=allowed, remedy=remedy, place=self.place)

    def is_error(self, *, allowed: str, remedy: str = "") -> SpecError:
        """The fault that the value is what it is."""
        return self.error(f"is {self.shown}", allowed=allowed, remedy=remedy)

    @property
    def shown(self) -> str:
        """The value in a few words."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        text = self.written or json.dumps(self.value, ensure_ascii=False)
        return text if len(text) <= 100 else text[:100] + "..."

    def mapping(self, allowed: str = "a mapping") -> dict[str, Node]:
        """The value as a mapping; SpecError if it is none."""
        if not isinstance(self.value, dict):
            raise self.is_error(allowed=allowed)
        return self.value

    def nearest_to(self, path: str) -> Node:
        """The node at a dotted path below this one, or the last one on the way to it that was written."""
        node = self
        for key in path.split("."):
            if not isinstance(node.value, dict) or key not in node.value:
                return node
            node = node.value[key]
        return node

    def plain(self) -> Any:
        """The value as plain data; a number that is none is refused, since it is not even equal to itself."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        if isinstance(self.value, float) and math.isnan(self.value):
            raise self.is_error(allowed="a number")
        return self.value


def below(path: str, key: str) -> str:
    """The dotted path of a key."""
    return f"{path}.{key}" if path else key


def node_from_data(data: Any, source: str, path: str = "", depth: int = 0) -> Node:
    """Plain data (what JSON can hold) as a node; every place is the source. SpecError for anything else."""
    if depth > MOST_DEPTH:
        raise SpecError("no usable document: nested too deeply", place=source)
    if isinstance(data, Mapping):
        if (special := special_float(data)) is not None:
            return Node(special, path, source, source)
        found = {str(key): value for key, value in data.items()}
        children = {key: node_from_data(found[key], source, below(path, key), depth + 1) for key in found}
        return Node(children, path, source, source)
    if isinstance(data, str | int | float) or data is None:
        return Node(data, path, source, source)
    if isinstance(data, list | tuple):
        items = [node_from_data(value, source, f"{path}[{index}]", depth + 1) for index, value in enumerate(data)]
        return Node(items, path, source, source)
    raise SpecError(f"{path or 'the document'} is a {type(data).__name__}", allowed="what JSON can hold", place=source)
