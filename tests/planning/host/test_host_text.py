"""What a trace holds on the host as text: it comes back, and a text of code of users is checked value by value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.tracing.rank_trace import Trace, dumps, loads

EVENTS: list[HostEvent] = [
    Mark(Phase.LOAD),
    HostAlloc(1, 7, HostCategory.CHECKPOINT, count=3),
    HostAlloc(2, 9, HostCategory.GRADIENT, pinned=True),
    HostFree(1),
]


def test_events_come_back_from_their_rows() -> None:
    assert loads(dumps(Trace((), host=tuple(EVENTS)))).host == tuple(EVENTS)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(["x", 1], id="no event"),
        pytest.param(["f", 1], id="given up and never taken"),
        pytest.param(["a", 1, -1, "gradient", False, 1], id="fewer bytes than none"),
        pytest.param(["a", 1, 2**70, "gradient", False, 1], id="more bytes than any machine has"),
        pytest.param(["a", 1, 1, "gradient", 1, 1], id="no truth value"),
        pytest.param(["a", 1, 1, "weights", False, 1], id="no category"),
        pytest.param(["a", 1, 1, "gradient", False, 1.5], id="no count"),
        pytest.param(["m", "lunch", 1], id="no phase"),
    ],
)
def test_anything_else_is_refused(row: list[Any]) -> None:
    text = dumps(Trace((), host=(HostFree(0),))).replace('[["f", 0]]', json.dumps([row]))

    with pytest.raises(ValueError, match=r"no |not a valid"):
        loads(text)
