"""A predicted history opens in PyTorch's own viewers, and says there what the replay said."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.snapshot import read_snapshot
from planner.allocator.verify import verify
from planner.events import Alloc, EmptyCache, Event, Free, Mark, Origin, Phase, Synchronize, Use
from planner.report.memory_viz import snapshot, write_snapshot
from planner.units import MIB

memory_viz = pytest.importorskip("torch.cuda._memory_viz")


def _busy() -> list[Event]:
    """Small and large blocks, two streams, a cache that is emptied, blocks of every size class."""
    sizes = (512, 3 * MIB, 700, 11 * MIB, 40 * MIB, 1 * MIB, 5 * MIB)
    events: list[Event] = [Mark(Phase.FORWARD, 1)]
    for block in range(60):
        events.append(Alloc(block, sizes[block % 7], block % 2, Origin("aten.mm", f"layers.{block}", (4,), "float32")))
        if block % 3 == 0:
            events.append(Use(block, 5))
        if block >= 4 and block % 4 == 0:
            events += [Free(block - 4), Free(block - 3)]
        if block == 25:
            events.append(Synchronize())
        if block == 40:
            events.append(EmptyCache())
    return events


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32"])
def test_planner_replays_its_own_snapshot_without_a_difference(tmp_path: Path, conf: str) -> None:
    events = _busy()
    timeline = replay(events, Rules.from_conf(conf))
    write_snapshot(tmp_path / "predicted.pickle", events, conf)

    (device,) = verify(read_snapshot(tmp_path / "predicted.pickle")).devices

    assert device.first_difference is None
    assert device.addresses.matched == device.addresses.total == 60
    assert device.segments.matched == device.segments.total > 0
    assert device.peak_allocated_bytes == timeline.peak_allocated_bytes
    assert device.peak_reserved_bytes == timeline.peak_reserved_bytes


def test_the_segments_at_the_end_hold_what_the_timeline_says(training: list[Event]) -> None:
    timeline, segments = replay(training), snapshot(training)["segments"]

    assert sum(each["total_size"] for each in segments) == timeline.reserved_bytes[-1]
    assert sum(each["allocated_size"] for each in segments) == timeline.allocated_bytes[-1]
    assert sum(each["requested_size"] for each in segments) == timeline.requested_bytes[-1]
    assert all(sum(block["size"] for block in each["blocks"]) == each["total_size"] for each in segments)


def test_a_block_that_waits_for_a_stream_is_pending_and_not_allocated() -> None:
    events = [Alloc(1, 3 * MIB, 0), Use(1, 7), Free(1)]
    (segment,) = snapshot(events)["segments"]

    assert (segment["allocated_size"], segment["active_size"]) == (0, 3 * MIB)
    assert [block["state"] for block in segment["blocks"]] == ["active_pending_free", "inactive"]
    assert [entry["action"] for entry in snapshot(events)["device_traces"][0]][-1] == "free_requested"


def test_torch_sums_up_the_segments(training: list[Event]) -> None:
    text = memory_viz.segsum(snapshot(training))

    assert re.search(r"segments: 1\ntotal_reserved: 2\.0MiB\n", text)


def test_torch_prints_the_trace_as_a_program(training: list[Event]) -> None:
    text = memory_viz.trace(snapshot(training))

    allocs = sum(isinstance(event, Alloc) for event in training)
    assert "cudaMalloc(" in text
    assert len(re.findall(r"^\w+ = \w+\[\d+:", text, re.MULTILINE)) == allocs


def test_torch_draws_the_history_and_the_flame_graph(training: list[Event]) -> None:
    predicted = snapshot(training)

    assert "snapshot.pickle" in memory_viz.trace_plot(predicted)
    lines = memory_viz.memory(predicted, format_flamegraph=lambda text: text)
    assert "layers.0:0:aten.empty" in lines


def test_phases_and_names_are_in_the_snapshot(training: list[Event]) -> None:
    predicted = snapshot(training)
    first = next(each for each in predicted["device_traces"][0] if each["action"] == "alloc")

    assert (first["size"], first["category"]) == (1000, "parameter")
    assert [(frame["filename"], frame["name"]) for frame in first["frames"]] == [
        ("layers.0", "aten.empty"),
        ("parameter", "layers.0.weight"),
        ("iteration 0", "load"),
    ]
    names = [each["name"] for each in predicted["external_annotations"] if each["stage"] == "START"]
    assert names == [
        "load 0", "forward 1", "backward 1", "optimizer_step 1", "forward 2", "backward 2", "optimizer_step 2",
    ]  # fmt: skip


def test_a_history_that_runs_out_of_memory_ends_there() -> None:
    events: list[Event] = [Alloc(1, 30 * MIB), Alloc(2, 30 * MIB), Alloc(3, 512)]

    last = snapshot(events, capacity_bytes=40 * MIB)["device_traces"][0][-1]

    assert (last["action"], last["size"], last["device_free"]) == ("oom", 30 * MIB, 10 * MIB)


def test_the_snapshot_is_plain_data(tmp_path: Path, training: list[Event]) -> None:
    write_snapshot(tmp_path / "predicted.pickle", training)

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            raise AssertionError(f"{module}.{name} is in the snapshot")

    with (tmp_path / "predicted.pickle").open("rb") as file:
        assert Plain(file).load() == snapshot(training)
