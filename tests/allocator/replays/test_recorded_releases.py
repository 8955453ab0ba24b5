"""Recorded runs that ran short of memory: on a device of that size the model releases its cache where they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from planner.allocator.blocks import Device
from planner.allocator.recording import Recording, recordings
from planner.allocator.rules import Rules
from planner.allocator.snapshot import read_snapshot
from planner.allocator.verify import start_allocator
from planner.events import Alloc, EmptyCache

ROOT = Path(__file__).parents[3]
SHORT = {
    "snapshots/octree-nca-infer": 0,
    "snapshots/octree-nca-train": 0,
    "snapshots-2/expandable-oom-qwen3-3dev": 1,
}
"""The recordings, and the device that ran short."""


def reserved(recording: Recording) -> list[int]:
    """Bytes after each event, as recorded, and last those at the start."""
    mapped = [piece.size for each in recording.start for piece in each.stretches if piece.mapped]
    now = at_start = sum(mapped)
    found = []
    for index in range(len(recording.events)):
        for change in recording.changes.get(index, ()):
            now += change.size if change.action in ("segment_alloc", "segment_map") else -change.size
        found.append(now)
    return [*found, at_start]


def releases(recording: Recording, most: int) -> Iterator[tuple[int, int]]:
    """Each event that gave memory back because the next one did not fit, and what would have sufficed for that one.

    What was given back although the next request fitted, as it did at another time, was given back by the program.
    """
    after = reserved(recording)
    for index, event in enumerate(recording.events[:-1]):
        needed = after[index - 1] + after[index + 1] - after[index]
        if isinstance(event, EmptyCache) and isinstance(recording.events[index + 1], Alloc) and needed > most:
            yield index, needed


@pytest.mark.parametrize("largest", [False, True], ids=["as small as it may be", "as large as it may be"])
@pytest.mark.parametrize("name", SHORT)
def test_a_device_of_that_size_makes_the_model_release_where_the_recorded_process_did(
    name: str, largest: bool, recorded_snapshots: Path
) -> None:
    snapshot = read_snapshot(recorded_snapshots.parent / f"{name}.pickle.xz")
    rules = Rules.from_conf(snapshot.conf)
    recording = next(each for each in recordings(snapshot, rules) if each.device == SHORT[name])
    as_recorded = reserved(recording)
    found = dict(releases(recording, max(as_recorded)))
    capacity = min(found.values()) - 1 if largest else max(as_recorded)

    allocator = start_allocator(recording, rules, Device(capacity))
    replayed = []
    for index, event in enumerate(recording.events):
        if index not in found:
            assert allocator.take(event)
        replayed.append(allocator.reserved)

    assert (len(found), allocator.cache_releases) == (1, 1)
    left = [index for index in range(len(replayed)) if index not in found]
    assert [replayed[index] for index in left] == [as_recorded[index] for index in left]


def test_the_page_tells_what_was_replayed() -> None:
    found = yaml.safe_load((ROOT / "tests/data/replayed_snapshots.yaml").read_text("utf-8"))
    page = " ".join((ROOT / "docs/how-it-works.md").read_text("utf-8").split())

    sums = {key: sum(each.get(key, 0) for each in found) for key in ("snapshots", "addresses", "segments", "releases")}
    assert f"In {sums['snapshots']} public snapshots from {len(found)} repositories" in page
    assert f"all {sums['addresses']:,} addresses and all {sums['segments']:,} segments" in page
    assert f"released {sums['releases']} times" in page
