"""A calibration as JSON: what is written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.truth.calibration.interval import Calibration, digest, from_json, to_json
from planner.truth.calibration.learning import learn
from planner.truth.calibration.observation import Observation
from planner.units import MIB

Seen = Callable[..., Observation]


@pytest.fixture
def document(seen: Seen) -> dict[str, Any]:
    known = learn([seen(0.02, measured_context_bytes=880 * MIB), seen(measured_out_of_memory=True, case="broken")])
    plain: dict[str, Any] = json.loads(json.dumps(to_json(known)))
    return plain


def test_the_document_is_the_contract(document: dict[str, Any]) -> None:
    assert list(document) == [
        "schema", "id", "reserved_error", "outside_correction_bytes", "corrections", "quarantined",
    ]  # fmt: skip
    assert document["schema"] == "planner.calibration/1"
    assert document["corrections"] == [
        {
            "gpu": "H100-SXM-80GB",
            "torch": "2.13",
            "reserved": {
                "residual": pytest.approx(0.02 / 6),
                "median": pytest.approx(0.02),
                "spread": 0.0,
                "measurements": 1,
            },
            "context": {"residual": pytest.approx(0.1 / 6), "median": 0.1, "spread": 0.0, "measurements": 1},
            "nccl": None,
        }
    ]
    assert [(each["observation"]["case"], each["reason"]) for each in document["quarantined"]] == [
        ("broken", "the measured step ran out of memory")
    ]


def test_nothing_learnt_is_a_document_too() -> None:
    assert to_json(Calibration.none()) == {
        "schema": "planner.calibration/1", "id": "none", "reserved_error": None, "outside_correction_bytes": 0,
        "corrections": [], "quarantined": [],
    }  # fmt: skip


def test_the_name_says_what_it_holds(seen: Seen) -> None:
    one, other = seen(0.02), seen(0.03)
    known = learn([one])

    assert len(known.id) == 12
    assert known.id == digest(known) == learn([one]).id
    assert (
        len({known.id, learn([other]).id, learn([one, other]).id, learn([one, seen(measured_reserved_bytes=0)]).id})
        == 4
    )


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(key)


def _with(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.__setitem__(key, value)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another schema": (_with("schema", "planner.plan/1"), "schema: a document of schema 'planner.plan/1'"),
    "no schema": (_without("schema"), "schema: a document of schema None"),
    "a key too few": (_without("id"), "calibration: id is missing"),
    "a key too many": (_with("colour", 1), "calibration: there is no key 'colour'"),
    "no number": (_with("reserved_error", float("nan")), "calibration.reserved_error: the number is too large"),
    "a truth for a number": (_with("outside_correction_bytes", True), "calibration.outside_correction_bytes: True"),
    "a text for a list": (_with("corrections", "none"), "calibration.corrections: 'none' is of a wrong type"),
    "a number for an object": (_with("corrections", [1]), "calibration.corrections[0]: 1 is of a wrong type"),
    "figures of another": (_with("reserved_error", 0.5), "calibration.id: the figures are not those of calibration"),
}


@pytest.mark.parametrize(("spoil", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_calibration_is_refused(
    document: dict[str, Any], spoil: Callable[[dict[str, Any]], Any], said: str
) -> None:
    spoil(document)

    with pytest.raises(PlannerError) as refused:
        from_json(document)

    assert str(refused.value).startswith(said)


def test_a_prior_by_hand_keeps_the_name_it_was_given() -> None:
    by_hand = replace(Calibration.none(), id="h100, by hand", reserved_error=0.03)

    assert from_json(to_json(by_hand)) == by_hand


def test_equal_measurements_have_equal_names_in_every_process(seen: Seen) -> None:
    """Names are stored: one that hinged on the order in which a process keeps its sets would be another every time."""
    good = [seen(0.02, case=f"good {n}") for n in range(3)]
    broken = [seen(measured_reserved_bytes=-n, case=f"broken {n}") for n in range(8)]

    assert learn([*good, *broken]).id == "310219bb9ea1"
