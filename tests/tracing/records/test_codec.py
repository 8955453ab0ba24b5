"""Records as plain values and back: order, types, what a field's metadata changes, and the place of a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from planner.errors import MeasureError, PlannerError
from planner.records import every, from_document, from_plain, shape, to_plain


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    name: str = field(metadata=shape(key="title"))
    sizes: Mapping[Colour, int] = field(metadata=shape(write=every(Colour)))
    points: tuple[Point, ...]
    interval: tuple[int, int]
    first: Point | None = field(default=None, metadata=shape(omit_default=True))
    about: Mapping[str, Any] = field(default_factory=dict, metadata=shape(then="count"))
    corner: Point = field(default=Point(0), metadata=shape(flatten=True))
    cache: int = field(default=0, metadata=shape(skip=True))
    by_rank: Mapping[int, bool] = field(default_factory=dict)
    letters: str = field(default="", metadata=shape(write=list, read="".join))

    @property
    def count(self) -> int:
        return len(self.points)


SHEET = Sheet(
    name="a",
    sizes={Colour.BLUE: 2},
    points=(Point(1, 2.5), Point(3)),
    interval=(1, 2),
    about={"free": [1, {"form": None}]},
    corner=Point(7, 8.0),
    by_rank={3: True},
    letters="bc",
)
DOCUMENT = {
    "title": "a",
    "sizes": {"red": 0, "blue": 2},
    "points": [{"x": 1, "y": 2.5}, {"x": 3, "y": 0.0}],
    "interval": [1, 2],
    "about": {"free": [1, {"form": None}]},
    "count": 2,
    "x": 7,
    "y": 8.0,
    "by_rank": {"3": True},
    "letters": ["b", "c"],
}


def test_a_record_is_written_in_the_order_of_its_fields() -> None:
    written = to_plain(SHEET)

    assert written == DOCUMENT
    assert list(written) == list(DOCUMENT)


def test_what_was_written_comes_back() -> None:
    again = from_plain(Sheet, DOCUMENT)

    assert to_plain(again) == DOCUMENT
    assert (again.points, again.interval, again.corner, again.by_rank, again.letters) == (
        SHEET.points, SHEET.interval, SHEET.corner, SHEET.by_rank, SHEET.letters,
    )  # fmt: skip
    assert from_plain(Sheet, {**DOCUMENT, "first": {"x": 1}}).first == Point(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": [{"x": 1}, {"x": "2"}]}, "sheet.points[1].x: '2' is of a wrong type\n  allowed: a whole number"),
        ({"points": {}}, "sheet.points: a dict is of a wrong type\n  allowed: a list"),
        ({"points": [{}]}, "sheet.points[0]: x is missing"),
        ({"points": [{"x": True}]}, "sheet.points[0].x: True is of a wrong type\n  allowed: a whole number"),
        ({"points": [{"x": 2**64}]}, "sheet.points[0].x: the number is too large, or none\n  allowed: a whole number"),
        ({"y": float("nan")}, "sheet.y: the number is too large, or none\n  allowed: a finite number"),
        ({"interval": [1]}, "sheet.interval: a list is of a wrong type\n  allowed: a list of 2"),
        ({"sizes": {"green": 1}}, "sheet.sizes.green: 'green' is of a wrong type\n  allowed: red, blue"),
        ({"by_rank": {"x": True}}, "sheet.by_rank.x: 'x' is of a wrong type\n  allowed: a whole number"),
        ({"letters": 1}, "sheet: letters cannot be read: can only join an iterable"),
        ({"first": {"z": 1}}, "sheet.first: there is no key 'z'\n  allowed: x, y"),
        ({"cache": 1}, "sheet: there is no key 'cache'"),
    ],
)
def test_a_fault_is_said_with_its_place(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(PlannerError) as refusal:
        from_plain(Sheet, {**DOCUMENT, **change}, "sheet")

    assert str(refusal.value).startswith(message)


def test_unknown_keys_are_ignored_unless_strict() -> None:
    assert from_plain(Point, {"x": 1, "z": 2}, strict=False) == Point(1)


def test_a_document_is_of_its_schema_and_a_fault_of_the_callers_kind() -> None:
    assert from_document(Point, {"schema": "point/1", "x": 1}, "point/1", "point") == Point(1)
    with pytest.raises(PlannerError, match="schema: a document of schema 'point/2' is not a point\n  allowed: point/1"):
        from_document(Point, {"schema": "point/2", "x": 1}, "point/1", "point")
    with pytest.raises(MeasureError, match="point: x is missing\n  change:  measure again"):
        from_document(Point, {"schema": "point/1"}, "point/1", "point", error=MeasureError, remedy="measure again")
