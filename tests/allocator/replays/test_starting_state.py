"""Traces that begin in the middle: the state at their beginning is found by undoing them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.snapshot import read_snapshot
from planner.allocator.verify import MatchCount, verify
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Use
from planner.records import to_plain
from planner.units import MIB

Recorded = Callable[..., dict[str, Any]]


def random_program(seed: int, largest: int, count: int = 600) -> list[Event]:
    generator = random.Random(seed)
    events: list[Event] = []
    live: list[int] = []
    waiting: list[int] = []
    for name in range(count):
        events.append(Alloc(name, int(2 ** generator.uniform(6, largest)), generator.choice([0, 0, 7])))
        live.append(name)
        while len(live) > 30 or (live and generator.random() < 0.45):
            freed = live.pop(generator.randrange(len(live)))
            if generator.random() < 0.1:
                events.append(Use(freed, 3))
                waiting.append(freed)
            events.append(Free(freed))
        if waiting and generator.random() < 0.2:
            events.append(FreeCompleted(waiting.pop(0)))
        if generator.random() < 0.01:
            events.append(EmptyCache())
            waiting.clear()
    return events


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


@pytest.mark.parametrize("keep", [None, 1500, 800, 200, 1])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("conf", "largest"), [("", 19), ("", 26), ("expandable_segments:True", 26)], ids=["small", "large", "expandable"]
)
def test_a_trace_of_the_model_replays_from_any_point(
    conf: str, largest: int, seed: int, keep: int | None, tmp_path: Path, recorded: Recorded
) -> None:
    content = recorded(random_program(seed, largest), conf, keep=keep)

    (device,) = verify(read_snapshot(write(tmp_path / "snapshot.pickle", content))).devices

    assert device.first_difference is None
    assert device.addresses.matched == sum(entry["action"] == "alloc" for entry in content["device_traces"][0])


def test_a_freed_block_was_larger_than_asked_for_by_a_rest_that_was_not_cut_off(
    tmp_path: Path, recorded: Recorded
) -> None:
    """The 11.5 MiB block took all of a 12 MiB hole. Only where the next block was put tells so."""
    events: list[Event] = [Alloc(0, 12 * MIB), Alloc(1, 40 * MIB), Free(1)]
    events += [Alloc(2, 12 * MIB), Alloc(3, 20 * MIB), Free(2), Alloc(4, 23 * MIB // 2), Free(3)]  # 4 is in 2's place
    middle = len(recorded(events)["device_traces"][0])
    events += [Alloc(5, 28 * MIB), Free(4), Free(5), Alloc(6, 11 * MIB)]
    content = recorded(events)
    content["device_traces"][0] = content["device_traces"][0][middle:]

    (device,) = verify(read_snapshot(write(tmp_path / "snapshot.pickle", content))).devices

    assert device.first_difference is None
    assert device.addresses == MatchCount(2, 2)


def test_a_wrong_address_is_the_first_difference(tmp_path: Path, recorded: Recorded) -> None:
    content = recorded([Alloc(0, 512), Alloc(1, 512), Alloc(2, 512)])
    trace = content["device_traces"][0]
    second, third = trace[2], trace[3]
    second["addr"], third["addr"] = third["addr"], second["addr"]

    (device,) = verify(read_snapshot(write(tmp_path / "snapshot.pickle", content))).devices

    assert device.addresses == MatchCount(1, 3)
    assert to_plain(device)["first_difference"] == {
        "event": 1,
        "what": "address",
        "recorded": f"{second['addr']:#x}",
        "replayed": f"{third['addr']:#x}",
    }


def test_a_segment_that_should_not_have_been_taken_is_a_difference(tmp_path: Path, recorded: Recorded) -> None:
    content = recorded([Alloc(0, 12 * MIB), Free(0), Alloc(1, 14 * MIB), Free(1), Alloc(2, 12 * MIB)])
    other = recorded([Alloc(0, 12 * MIB), Free(0), Alloc(1, 14 * MIB), Free(1), Alloc(2, 16 * MIB)])
    other["device_traces"][0][-1]["size"] = content["device_traces"][0][-1]["size"]

    (device,) = verify(read_snapshot(write(tmp_path / "snapshot.pickle", other))).devices

    assert device.segments == MatchCount(2, 3)
    assert device.addresses == MatchCount(2, 3)
    assert device.first_difference is not None


def test_what_if_allocates_what_was_there_before(tmp_path: Path, recorded: Recorded) -> None:
    content = recorded([Alloc(0, 25 * MIB), Alloc(1, 3 * MIB), Free(1)], keep=3)

    (device,) = verify(
        read_snapshot(write(tmp_path / "s.pickle", content)), "expandable_segments:True", 64 * MIB
    ).devices

    assert to_plain(device)["what_if"] == {
        "conf": "expandable_segments:True",
        "peak_allocated_bytes": 28 * MIB,
        "peak_reserved_bytes": 40 * MIB,
        "out_of_memory": False,
        "exact": False,
    }
