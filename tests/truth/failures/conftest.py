"""Builders of failures: torch's messages in each form, and snapshots whose last request failed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch_messages import alloc_conf

from planner.events import Event
from planner.report.memory_viz import snapshot

MODEL = "/home/someone/job/model.py"


@pytest.fixture(scope="session")
def message() -> Callable[..., str]:
    """A message of torch 2.9 with these figures."""
    return message_of


@pytest.fixture(scope="session")
def failed() -> Callable[..., bytes]:
    """A snapshot of these events on a device of this capacity, on which the last one does not fit."""
    return failed_snapshot


def message_of(**facts: Any) -> str:
    """Defaults: a GPU of 80 GiB that is full of tensors."""
    told = {"device": 0, "total": "79.00 GiB", "tried": "2.00 GiB", "free": "1.00 GiB", "allocated": "76.00 GiB",
            "unallocated": "1.00 GiB", **facts}  # fmt: skip
    return alloc_conf(told)


def failed_snapshot(
    events: Sequence[Event], capacity_bytes: int, conf: str = "", frames: Sequence[dict[str, Any]] = ()
) -> bytes:
    """`frames` are those of every request, innermost first."""
    content = snapshot(events, conf, capacity_bytes)
    (trace,) = content["device_traces"]
    assert trace[-1]["action"] == "oom"
    for entry in trace:
        if entry["action"] in ("alloc", "oom"):
            entry["frames"] = list(frames)
    return pickle.dumps(content, protocol=4)
