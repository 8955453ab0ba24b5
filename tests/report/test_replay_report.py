"""What `planner replay` prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from planner.report.recorded_snapshot import render_replay
from planner.report.style import Style
from planner.units import GIB

GOLDEN = Path(__file__).parents[1] / "golden"


def _report(**changes: Any) -> dict[str, Any]:
    device = {
        "device": 0,
        "events": 12345,
        "addresses": {"matched": 6000, "total": 6000},
        "segments": {"matched": 120, "total": 120},
        "peak_allocated_bytes": 3 * GIB,
        "peak_reserved_bytes": 4 * GIB,
        "first_difference": None,
    }
    return {"schema": "planner.replay/1", "devices": [{**device, **changes}]}


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("report_replay_exact", _report()),
        (
            "report_replay_differs",
            _report(
                addresses={"matched": 5_999_999, "total": 6_000_000},
                first_difference={"event": 77, "what": "address", "recorded": "0x7f0000", "replayed": "0x7f0200"},
            ),
        ),
        (
            "report_replay_what_if",
            _report(
                what_if={
                    "conf": "expandable_segments:True",
                    "peak_allocated_bytes": 3 * GIB,
                    "peak_reserved_bytes": 3 * GIB,
                    "exact": False,
                }
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_replay_reads_as_the_golden_file(name: str, report: dict[str, Any]) -> None:
    text = render_replay("lm24-train.pickle.xz", report, Style())

    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_one_miss_in_millions_is_not_a_hundred_percent() -> None:
    text = render_replay("", _report(addresses={"matched": 9_999_999, "total": 10_000_000}), Style())

    assert "99.99 %" in text
    assert "Not every decision of the allocator was replayed." in text


def test_a_snapshot_without_events_says_so() -> None:
    assert "The snapshot holds no events." in render_replay("empty", {"devices": []}, Style())
