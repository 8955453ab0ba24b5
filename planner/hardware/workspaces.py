"""Workspaces by shape as they were measured on one GPU with one torch, and what they answer for other shapes.

A library such as cuDNN decides by its own heuristics what a kernel takes, and these may jump: between two measured
neighbours that differ in one size the answer is interpolated and says so, anywhere else there is none.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from planner.errors import FactsError
from planner.versions import minor_of

SCHEMA = "planner.workspace/1"
_DIGITS = 12
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRequest:
    """What a kernel is asked to do: `shapes` of its tensors, `options` all else that the library hears, as one text."""

    kernel: str
    dtype: str
    shapes: Shapes
    options: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceFact:
    """Bytes that a kernel took for a request on a GPU (catalog name). `first_bytes` are those of the first such call of
    a process: where a library tries its algorithms, that call takes what the largest of them wants."""

    request: WorkspaceRequest
    bytes: int
    first_bytes: int
    gpu: str
    torch: str
    driver: str
    date: str
    command: str
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions of the libraries: `cuda`, `cudnn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceAnswer:
    """`margin_bytes`: how much more the larger of two neighbours took; 0 for what was measured itself."""

    bytes: int
    first_bytes: int
    margin_bytes: int = 0
    interpolated: bool = False


class WorkspaceTable:
    """The facts of one GPU and torch (major.minor)."""

    def __init__(self, facts: Iterable[WorkspaceFact], gpu: str, torch: str) -> None:
        group = gpu, minor_of(torch)
        self.facts = tuple(each for each in facts if (each.gpu, minor_of(each.torch)) == group)
        """In their order; of a request that was measured more than once the last counts."""
        self._exact = {each.request: each for each in self.facts}
        self._alike: dict[tuple[Any, ...], list[WorkspaceFact]] = defaultdict(list)
        for each in self._exact.values():
            self._alike[_kind(each.request)].append(each)

    def __bool__(self) -> bool:
        return bool(self.facts)

    @cached_property
    def digest(self) -> str:
        """Names what the table answers; empty for an empty one."""
        if not self.facts:
            return ""
        said = [repr((each.request, each.bytes, each.first_bytes)) for each in self._exact.values()]
        return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()[:_DIGITS]

    @property
    def provenance(self) -> str:
        """Where the facts come from, for people: GPU, software, dates."""
        found = {(each.gpu, each.torch, each.driver, each.date[:10]) for each in self.facts}
        return "; ".join(f"{gpu}, torch {torch}, driver {driver}, {date}" for gpu, torch, driver, date in sorted(found))

    def answer(self, request: WorkspaceRequest) -> WorkspaceAnswer | None:
        """Bytes as measured, or between two measured neighbours; None where neither is known."""
        fact = self._exact.get(request)
        if fact is not None:
            return WorkspaceAnswer(bytes=fact.bytes, first_bytes=fact.first_bytes)
        around = self._neighbours(request)
        if around is None:
            return None
        below, above, share = around
        return WorkspaceAnswer(
            bytes=_between(below.bytes, above.bytes, share),
            first_bytes=_between(below.first_bytes, above.first_bytes, share),
            margin_bytes=max(
                max(below.bytes, above.bytes) - _between(below.bytes, above.bytes, share),
                max(below.first_bytes, above.first_bytes) - _between(below.first_bytes, above.first_bytes, share),
            ),
            interpolated=True,
        )

    def _neighbours(self, request: WorkspaceRequest) -> tuple[WorkspaceFact, WorkspaceFact, float] | None:
        """The nearest fact below and above in one size, such as the batch, wherever that size stands in the shapes;
        and where between them the request lies, from 0 to 1. Of several pairs the one whose sizes are nearest."""
        sizes: dict[tuple[tuple[int, int], ...], list[tuple[int, WorkspaceFact]]] = defaultdict(list)
        asked: dict[tuple[tuple[int, int], ...], int] = {}
        for fact in self._alike.get(_kind(request), ()):
            places = _differing_places(request.shapes, fact.request.shapes)
            here = {request.shapes[tensor][dim] for tensor, dim in places}
            there = {fact.request.shapes[tensor][dim] for tensor, dim in places}
            if len(here) == len(there) == 1:
                asked[places] = here.pop()
                sizes[places].append((there.pop(), fact))
        pairs = []
        for places, found in sizes.items():
            size = asked[places]
            below = max((each for each in found if each[0] < size), key=lambda each: each[0], default=None)
            above = min((each for each in found if each[0] > size), key=lambda each: each[0], default=None)
            if below is not None and above is not None:
                share = (size - below[0]) / (above[0] - below[0])
                pairs.append((above[0] / max(below[0], 1), places, (below[1], above[1], share)))
        return min(pairs, key=lambda pair: pair[:2])[2] if pairs else None


def _kind(request: WorkspaceRequest) -> tuple[Any, ...]:
    return request.kernel, request.dtype, request.options, tuple(map(len, request.shapes))


def _differing_places(one: Shapes, other: Shapes) -> tuple[tuple[int, int], ...]:
    return tuple(
        (tensor, dim)
        for tensor, (here, there) in enumerate(zip(one, other, strict=True))
        for dim, (mine, its) in enumerate(zip(here, there, strict=True))
        if mine != its
    )


def _between(below: int, above: int, share: float) -> int:
    return math.ceil(below + (above - below) * share)


def to_json(fact: WorkspaceFact) -> dict[str, Any]:
    """One line of a file of facts, schema planner.workspace/1."""
    about = {name: value for name, value in asdict(fact).items() if name != "request"}
    return {"schema": SCHEMA, **asdict(fact.request), **about}


def from_json(document: Mapping[str, Any], place: str) -> WorkspaceFact:
    """The fact of a line. Raises FactsError with the line for what is none."""
    if document.get("schema") != SCHEMA:
        raise FactsError(f"schema {str(document.get('schema'))[:60]!r} is no workspace", allowed=SCHEMA, place=place)
    if set(document) != _KEYS:
        raise FactsError(
            f"keys missing: {sorted(_KEYS - set(document))}, unknown: {sorted(map(str, set(document) - _KEYS))}",
            allowed=", ".join(sorted(_KEYS)),
            remedy="measure again, with this planner",
            place=place,
        )
    request = WorkspaceRequest(
        shapes=_shapes(document["shapes"], place),
        **{name: _text(document[name], f"{place}: {name}") for name in ("kernel", "dtype", "options")},
    )
    return WorkspaceFact(
        request=request,
        bytes=_size(document["bytes"], f"{place}: bytes"),
        first_bytes=_size(document["first_bytes"], f"{place}: first_bytes"),
        software={str(name): str(version) for name, version in dict(document["software"]).items()},
        **{name: _text(document[name], f"{place}: {name}") for name in ("gpu", "torch", "driver", "date", "command")},
    )


_KEYS = {
    "schema", "kernel", "dtype", "shapes", "options", "bytes", "first_bytes", "gpu", "torch", "driver", "date",
    "command", "software",
}  # fmt: skip


def _shapes(value: Any, place: str) -> Shapes:
    if not isinstance(value, Sequence) or not all(isinstance(shape, list | tuple) for shape in value):
        raise FactsError(f"{str(value)[:60]!r} are no shapes", allowed="a list of lists of sizes", place=place)
    return tuple(tuple(_size(size, f"{place}: shapes") for size in shape) for shape in value)


def _size(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FactsError(f"{str(value)[:60]!r} is no size", allowed="a whole number from 0 on", place=place)
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise FactsError(f"{str(value)[:60]!r} is no text", allowed="a text", place=place)
    return value
