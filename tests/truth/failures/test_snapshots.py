"""Snapshots taken at a failure: what failed, who held what, and which setting would have helped, each replayed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.recording import recordings
from planner.allocator.rules import Rules
from planner.allocator.snapshot import snapshot_of_bytes
from planner.errors import SnapshotError
from planner.events import Alloc, Category, EmptyCache, Event, Free, Mark, Origin, Phase, Role
from planner.report.memory_viz import snapshot
from planner.report.style import Style
from planner.truth.failures.explanation import explain
from planner.truth.failures.explanation_text import render
from planner.truth.failures.messages import Cause
from planner.truth.failures.snapshot_failure import Remedy, SnapshotFailure, explain_failures
from planner.units import GIB, MIB

Failed = Callable[..., bytes]
FULL: list[Event] = [Alloc(0, 600 * MIB), Alloc(1, 300 * MIB), Alloc(2, 500 * MIB)]
IN_PIECES: list[Event] = [Alloc(0, 400 * MIB), Alloc(1, 600 * MIB), Free(0), Alloc(2, 2 * MIB), Free(1)]
"""A release of the cache gives the 600 MiB back, not the 400 in which the 2 MiB lie."""
FORWARD = (
    {"filename": "/job/models/mlp.py", "line": 34, "name": "forward"},
    {"filename": "/lib/torch/nn/modules/module.py", "line": 1784, "name": "_call_impl"},
    {"filename": "/job/train.py", "line": 12, "name": "step"},
)
BACKWARD = (
    {"filename": "/lib/torch/autograd/graph.py", "line": 824, "name": "_engine_run_backward"},
    {"filename": "/job/train.py", "line": 14, "name": "step"},
)
PATTERN_LIBRARY = (
    {"filename": "/env/site-packages/torch/functional.py", "line": 373, "name": "einsum"},
    {"filename": "/env/site-packages/einops/einops.py", "line": 916, "name": "einsum"},
)
MODEL_LIBRARY = ({"filename": "/env/site-packages/transformers/models/qwen2.py", "line": 218, "name": "forward"},)


def engine(*work: str) -> tuple[dict[str, Any], ...]:
    """Frames of autograd's thread, which has none of Python."""
    names = ("torch::unwind::unwind()", *work, "torch::autograd::Engine::evaluate_function(GraphTask)")
    return tuple({"filename": "??", "line": 0, "name": each} for each in names)


def only(packed: bytes) -> SnapshotFailure:
    (found,) = explain_failures(packed, "a snapshot")
    return found


def by_conf(found: SnapshotFailure) -> dict[str, bool]:
    return {each.conf: each.fits for each in found.remedies}


def test_it_says_what_was_asked_for_and_what_there_was(failed: Failed) -> None:
    found = only(failed(FULL, GIB))

    assert (found.size_bytes, found.free_bytes, found.capacity_bytes) == (500 * MIB, 124 * MIB, GIB)
    assert (found.pool, found.stream, found.recorded, found.exact) == ("large", 0, True, True)
    assert found.cause is Cause.FULL


def test_frames_say_which_line_module_and_phase_it_was(failed: Failed) -> None:
    found = only(failed(FULL, GIB, frames=FORWARD))

    assert (found.line, found.module, found.phase) == (
        "/job/models/mlp.py:34 forward", "/job/models/mlp.py:34 forward", Phase.FORWARD,
    )  # fmt: skip
    (holder,) = found.state.holders
    assert (holder.line, holder.bytes, holder.count) == ("/job/models/mlp.py:34 forward", 900 * MIB, 2)


def test_a_snapshot_of_planners_own_names_parameters_modules_and_phases() -> None:
    linear, used = Origin("aten.empty", "layers.0", (256, 1024), "float32"), Origin("aten.mm", "layers.1", (), "")
    events: list[Event] = [
        Mark(Phase.LOAD, 0), Alloc(0, 600 * MIB, 0, linear), Role(0, Category.PARAMETER, "layers.0.weight"),
        Mark(Phase.FORWARD, 1), Alloc(1, 300 * MIB, 0, used), Alloc(2, 500 * MIB, 0, used),
    ]  # fmt: skip

    found = only(pickle.dumps(snapshot(events, capacity_bytes=GIB), protocol=4))

    assert [(each.line, each.module, each.phase) for each in found.state.holders] == [
        ("parameter layers.0.weight", "layers.0", Phase.LOAD), ("layers.1 aten.mm", "layers.1", Phase.FORWARD),
    ]  # fmt: skip


def test_an_allocation_of_autograds_engine_is_of_the_backward(failed: Failed) -> None:
    assert only(failed(FULL, GIB, frames=BACKWARD)).phase is Phase.BACKWARD


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        (PATTERN_LIBRARY + FORWARD, "/job/models/mlp.py:34 forward"),
        (PATTERN_LIBRARY + MODEL_LIBRARY + FORWARD[1:], "site-packages/einops/einops.py:916 einsum"),
        (PATTERN_LIBRARY + FORWARD[2:], "site-packages/einops/einops.py:916 einsum"),
        (({**FORWARD[0], "filename": "D:\\job\\models\\mlp.py"}, *FORWARD[1:]), "job/models/mlp.py:34 forward"),
    ],
    ids=["in the program's own module", "in a library's module", "in no module", "on Windows"],
)
def test_a_library_is_passed_over_only_where_the_programs_own_module_called_it(
    frames: tuple[dict[str, Any], ...], line: str, failed: Failed
) -> None:
    assert only(failed(FULL, GIB, frames=frames)).line == line


@pytest.mark.parametrize(
    ("work", "line"),
    [
        (
            ("at::_ops::bmm::call(Tensor)", "torch::autograd::generated::BmmBackward0::apply(list)"),
            "autograd BmmBackward0",
        ),
        (("torch::autograd::AccumulateGrad::apply(list)",), "autograd AccumulateGrad"),
        (("at::_ops::add_Tensor::call(Tensor)", "torch::autograd::accumulate(list)"), "autograd aten.add_Tensor"),
        ((), "autograd engine"),
    ],
)
def test_in_autograds_thread_it_is_what_autograd_worked_at(work: tuple[str, ...], line: str, failed: Failed) -> None:
    found = only(failed(FULL, GIB, frames=engine(*work)))

    assert (found.line, found.phase) == (line, Phase.BACKWARD)


def test_no_setting_helps_a_device_that_is_full(failed: Failed) -> None:
    found = only(failed(FULL, GIB))

    assert not any(by_conf(found).values())
    assert found.remedies[0] == Remedy(
        conf="",
        fits=False,
        exact=True,
        reserved_bytes=900 * MIB,
        cache_releases=0,
        same=True,
        missing_bytes=376 * MIB,
    )


def test_fragmentation_is_measured_and_the_setting_that_helps_is_found(failed: Failed) -> None:
    found = only(failed([*IN_PIECES, Alloc(3, 900 * MIB)], GIB))

    assert found.cause is Cause.FRAGMENTATION
    assert (found.state.allocated_bytes, found.state.reserved_bytes) == (2 * MIB, 400 * MIB)
    assert (found.state.inactive_split_bytes, found.state.largest_free_bytes) == (398 * MIB, 398 * MIB)
    assert by_conf(found)["expandable_segments:True"] is True
    assert by_conf(found)[""] is False


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_with_what_was_missing_the_request_is_served_and_with_less_it_is_not(conf: str, failed: Failed) -> None:
    missing = only(failed(FULL, GIB, conf)).remedies[0].missing_bytes

    assert missing is not None
    ends = [snapshot(FULL, conf, GIB + more)["device_traces"][0][-1]["action"] for more in (missing, missing - 2 * MIB)]
    assert ends == ["alloc", "oom"]


def test_a_process_that_had_more_before_it_failed_is_told_apart() -> None:
    """Others took what it had given back."""
    events = [Alloc(0, 900 * MIB), Free(0), EmptyCache(), Alloc(1, 300 * MIB), Alloc(2, 800 * MIB)]
    content = snapshot(events, capacity_bytes=GIB)
    content["device_traces"][0][-1]["device_free"] = 100 * MIB
    found = only(pickle.dumps(content))

    assert (found.capacity_bytes, found.remedies[0].earlier, found.remedies[0].missing_bytes) == (400 * MIB, True, None)
    assert "before the request that failed" in found.notes[0]


def test_where_the_recorded_settings_fit_too_no_other_setting_is_said_to_help() -> None:
    """The cache, which was not released, would have sufficed."""
    content = snapshot([Alloc(0, 600 * MIB), Free(0)])
    content["device_traces"][0].append({"action": "oom", "size": 700 * MIB, "stream": 0, "device_free": 424 * MIB})
    found = explain("", pickle.dumps(content))

    assert [each.fits for each in found.snapshots[0].remedies[:2]] == [True, True]
    told = " ".join(render("oom.pickle", found, Style()).split())
    assert "prove nothing" in told
    assert "would have" not in told


def test_a_setting_that_was_in_use_is_not_proposed_again(failed: Failed) -> None:
    found = only(failed(FULL, GIB, "expandable_segments:True"))

    assert "expandable_segments:True" not in [each.conf for each in found.remedies[1:]]
    assert "expandable_segments:True,roundup_power2_divisions:4" in by_conf(found)


def test_one_request_larger_than_the_device_is_told_apart(failed: Failed) -> None:
    assert only(failed([Alloc(0, 2 * MIB), Alloc(1, 2 * GIB)], GIB)).cause is Cause.SINGLE_REQUEST


def test_a_device_with_room_means_a_limit_of_the_process(failed: Failed) -> None:
    content = pickle.loads(failed(FULL, GIB))
    content["device_traces"][0][-1]["device_free"] = 40 * GIB
    found = only(pickle.dumps(content))

    assert found.cause is Cause.LIMIT
    assert found.capacity_bytes == 900 * MIB
    assert "set_per_process_memory_fraction" in found.notes[0]


def test_a_snapshot_without_a_failed_request_is_the_state_it_was_taken_in() -> None:
    found = only(pickle.dumps(snapshot(FULL[:2])))

    assert (found.recorded, found.cause, found.remedies) == (False, Cause.UNKNOWN, ())
    assert found.state.allocated_bytes == 900 * MIB
    assert found.notes == ("no failed request is recorded: this is the state in which the snapshot was taken",)


def without_history(events: list[Event]) -> bytes:
    """As an observer of failures dumps it where nobody called `_record_memory_history`."""
    content = {**snapshot(events), "device_traces": [[]]}
    for segment in content["segments"]:
        segment["blocks"] = [{**block, "frames": []} for block in segment["blocks"]]
    return pickle.dumps(content)


def test_a_snapshot_without_a_history_says_what_was_held() -> None:
    found = only(without_history([*IN_PIECES, Alloc(3, 600 * MIB)]))

    assert (found.recorded, found.cause, found.phase_peaks) == (False, Cause.UNKNOWN, {})
    assert (found.state.allocated_bytes, found.state.reserved_bytes) == (602 * MIB, 1000 * MIB)
    assert [(each.line, each.count) for each in found.state.holders] == [
        ("629,145,600 bytes each, no frames were recorded", 1),
        ("2,097,152 bytes each, no frames were recorded", 1),
    ]
    assert "no history was recorded" in found.notes[1]


def test_the_log_is_asked_for_where_a_snapshot_alone_does_not_say_why() -> None:
    told = " ".join(render("oom.pickle", explain("", without_history(FULL[:2])), Style()).split())

    assert "not that memory ran out. Give the job's log beside the snapshot" in told


def test_a_small_request_is_told_with_the_segment_that_it_takes(failed: Failed) -> None:
    found = explain("", failed([*FULL[:2], Alloc(2, 120 * MIB), Alloc(3, 5 * MIB)], GIB))

    assert "5.00 MiB, large pool, stream 0, a segment of 0.02 GiB" in render("oom.pickle", found, Style())


def test_a_message_beside_a_snapshot_without_a_history_is_replayed_on_its_segments(
    message: Callable[..., str],
) -> None:
    log = message(
        total="1.00 GiB", tried="500.00 MiB", free="24.00 MiB", allocated="602.00 MiB", unallocated="398.00 MiB"
    )
    (found,) = explain(log, without_history([*IN_PIECES, Alloc(3, 600 * MIB)])).snapshots

    assert (found.size_bytes, found.capacity_bytes) == (500 * MIB, GIB)
    assert found.remedies[0].missing_bytes == 476 * MIB


def test_a_snapshot_of_nothing_is_refused() -> None:
    with pytest.raises(SnapshotError, match="holds no trace, and no segment"):
        only(without_history([]))


def test_a_message_of_another_job_is_said_to_be_one(message: Callable[..., str]) -> None:
    (found,) = explain(message(), pickle.dumps(snapshot(FULL[:2]))).snapshots

    assert "of different jobs" in found.notes[1]


def test_of_several_failures_the_last_is_explained() -> None:
    content = pickle.loads(pickle.dumps(snapshot(FULL, capacity_bytes=GIB)))
    content["device_traces"][0].insert(2, {"action": "oom", "size": 9 * GIB, "stream": 0, "device_free": 0})
    found = only(pickle.dumps(content))

    assert (found.failures, found.size_bytes) == (2, 500 * MIB)


def recorded(name: str, *, published: bool = True) -> bytes:
    """A recorded snapshot; without it the test is skipped, and in CI it fails, if it is among those that CI has."""
    path = Path(os.environ.get("PLANNER_TRUTH", Path(__file__).parents[4] / "shared" / "truth")) / name
    if path.is_file():
        return path.read_bytes()
    reason = f"PLANNER_TRUTH: there is no {path}"
    if os.environ.get("CI") and published:
        pytest.fail(reason)
    pytest.skip(reason)


def test_a_recorded_failure_with_expandable_segments_fails_in_the_model_too() -> None:
    """Constructor-Sun/code_location at 52e52b2, memory_snapshot.pickle: device 1 of three."""
    found = only(recorded("snapshots-2/expandable-oom-qwen3-3dev.pickle.xz"))

    assert (found.device, found.size_bytes, found.free_bytes) == (1, 5_308_694_528, 95_682_560)
    assert (found.state.allocated_bytes, found.state.reserved_bytes) == (84_063_358_976, 84_202_749_952)
    assert (found.operator, found.line) == ("aten.relu", "src/train/models.py:181 update_nodes")
    assert (found.exact, found.cause) == (True, Cause.FULL)
    assert not any(by_conf(found).values())
    lines = [(each.line, each.bytes) for each in found.state.holders[:2]]
    assert lines == [
        ("src/train/models.py:174 update_nodes", 31_867_720_704),
        ("src/train/models.py:181 update_nodes", 26_543_472_640),
    ]


def test_a_snapshot_that_an_observer_took_at_the_failure_says_who_held_what() -> None:
    """Yiyi-philosophy/LLM-inference at 41810ba, oom_snapshot.pickle: torch 2.0's format, without a trace."""
    found = only(recorded("failures/llm-inference-41810ba-oom_snapshot.pickle", published=False))

    assert (found.recorded, found.state.allocated_bytes, found.state.reserved_bytes) == (
        False, 11_840_159_744, 11_844_714_496,
    )  # fmt: skip
    (holder,) = found.state.holders
    assert (holder.line, holder.count) == ("FlexGen/flexgen/pytorch_backend.py:190 allocate", 460)


@pytest.mark.parametrize(
    ("name", "capacity_bytes", "helps"),
    [
        ("lm4-train-ctx200-fp32", 1280 * MIB, True),
        ("lm4-train-ctx200-fp32", 1090 * MIB, False),
        ("lm4-train-ctx200-autocast", 1040 * MIB, True),
    ],
)
def test_a_recorded_run_on_a_smaller_device_fails_and_what_helps_is_found(
    name: str, capacity_bytes: int, helps: bool
) -> None:
    """Made from a recording that did not fail: its own events on a device of less memory."""
    (recording,) = recordings(snapshot_of_bytes(recorded(f"snapshots/{name}.pickle.xz"), name)[0], Rules())
    found = only(pickle.dumps(snapshot(recording.events, capacity_bytes=capacity_bytes)))

    assert found.remedies[0].fits is False
    assert by_conf(found)["expandable_segments:True"] is helps
