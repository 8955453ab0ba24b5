"""A document as it was written: values that remember where they stand, and the nearest known name of an unknown one."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import SpecError
from planner.job.json_text import number_too_long, special_float
from planner.job.size_limits import LONGEST_NAME, LONGEST_PATH, MOST_DEPTH, MOST_VALUES, MOST_WHOLE

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
        return self.error(f"is {self.summary}", allowed=allowed, remedy=remedy)

    @property
    def summary(self) -> str:
        """The value in a few words."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        value = self.value[:101] if isinstance(self.value, str) else self.value
        text = self.written or json.dumps(value, ensure_ascii=False)
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

    def first_written(self, *paths: str) -> str:
        """The first of these dotted paths that the document says; the last where it says none."""
        return next((path for path in paths if self.nearest_to(path).path == path), paths[-1])

    def fault(self, path: str, problem: str, *, allowed: str = "", remedy: str = "") -> SpecError:
        """A fault of the value at a dotted path, or of the nearest to it that was written."""
        return self.nearest_to(path).error(problem, allowed=allowed, remedy=remedy)

    def refuse_if(self, condition: object, path: str, problem: str, *, allowed: str = "", remedy: str = "") -> None:
        """Raises the fault of the value at a dotted path where the condition holds."""
        if condition:
            raise self.fault(path, problem, allowed=allowed, remedy=remedy)

    def refuse_job_if(self, condition: object, path: str, problem: str, *, allowed: str = "", remedy: str = "") -> None:
        """As `refuse_if`, of a contradiction that is not one value's: its sentence does not begin with that value."""
        if condition:
            raise SpecError(problem, allowed=allowed, remedy=remedy, place=self.nearest_to(path).place)

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
    """The dotted path of a key; cut where it is longer than anybody reads, as each value below it has one too."""
    if len(path) >= LONGEST_PATH:
        return path
    shown = key if len(key) <= LONGEST_NAME else key[:LONGEST_NAME] + "..."
    return f"{path}.{shown}" if path else shown


def item_of(path: str, index: int) -> str:
    """The path of an item of a list."""
    return path if len(path) >= LONGEST_PATH else f"{path}[{index}]"


def check_text(text: str, name: str, place: str) -> None:
    """Raises SpecError for a text that no file can hold: half of a surrogate pair, as JSON can escape it, is no
    character and has no UTF-8."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise SpecError(
            f"{name or 'the document'} holds {half!a}, half of a surrogate pair, which is not a character",
            allowed="text that can be written as UTF-8",
            place=place,
        ) from None


def node_from_data(data: Any, source: str, path: str = "") -> Node:
    """Plain data (what JSON can hold) as a node; every place is the source. SpecError for anything else, and for what
    is beyond the limits of planner.job.size_limits."""
    return _Conversion(source).node(data, path, 0)


def placed(node: Node, path: str, place: str) -> Node:
    """The node at another key, said elsewhere."""
    moved = replace(node, path=path, place=place, key_place=place)
    if isinstance(node.value, dict):
        children = {key: placed(child, below(path, key), place) for key, child in node.value.items()}
        return replace(moved, value=children)
    if isinstance(node.value, list):
        items = [placed(item, item_of(path, index), place) for index, item in enumerate(node.value)]
        return replace(moved, value=items)
    return moved


class _Conversion:
    """Counts what it has converted."""

    def __init__(self, source: str) -> None:
        self._source, self._count = source, 0

    def node(self, data: Any, path: str, depth: int) -> Node:
        source = self._source
        self._count += 1
        if self._count > MOST_VALUES:
            raise too_many_values(source)
        if isinstance(data, str):
            check_text(data, path, source)
        elif isinstance(data, int) and abs(data) > MOST_WHOLE:
            raise number_too_long(hex(data), source, path)
        if data is None or isinstance(data, str | int | float):
            return Node(data, path, source, source)
        if depth > MOST_DEPTH:
            raise SpecError("no usable document: nested too deeply", place=source)
        if isinstance(data, Mapping):
            if (special := special_float(data)) is not None:
                return Node(special, path, source, source)
            children: dict[str, Node] = {}
            for key, value in data.items():
                name = str(key)
                check_text(name, f"a key of {path or 'the document'}", source)
                children[name] = self.node(value, below(path, name), depth + 1)
            return Node(children, path, source, source)
        if isinstance(data, list | tuple):
            items = [self.node(value, item_of(path, index), depth + 1) for index, value in enumerate(data)]
            return Node(items, path, source, source)
        kind = type(data).__name__
        raise SpecError(f"{path or 'the document'} is a {kind}", allowed="what JSON can hold", place=source)


def too_many_values(place: str) -> SpecError:
    """The fault of a document that no job needs."""
    return SpecError(f"the document has more than {MOST_VALUES} values", allowed="fewer", place=place)


def nearest(name: str, known: Iterable[str], *, count: int = 1, likeness: float = 0.5) -> list[str]:
    """Up to `count` of the `known` names that begin with `name` or look like it, the likeliest first; in any case."""
    if len(name) > LONGEST_NAME:
        return []
    folded, by_folded = name.casefold(), {other.casefold(): other for other in known}
    longer = [other for other in by_folded if len(folded) > 1 and other.startswith(folded)]
    alike = difflib.get_close_matches(folded, by_folded, n=count, cutoff=likeness)
    return [by_folded[other] for other in dict.fromkeys(longer + alike)][:count]


def did_you_mean(name: str, known: Iterable[str], *, likeness: float = 0.5) -> str:
    """A remedy for an unknown name; empty if nothing known is near."""
    near = nearest(name, known, likeness=likeness)
    return f"did you mean `{near[0]}`?" if near else ""
