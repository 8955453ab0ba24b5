"""A failure as a snapshot recorded it: what failed, who held what, and what would have helped, each replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import RecordedFailure, Recording
from planner.allocator.rules import Rules
from planner.allocator.snapshot import snapshot_of_bytes
from planner.allocator.verify import DeviceReport, verify
from planner.events import Phase
from planner.out_of_memory.allocator_state import AllocatorState, BlockMakers, state_of
from planner.out_of_memory.causes import SMALLEST_SHARE
from planner.out_of_memory.failure import Cause, GpuFailure
from planner.out_of_memory.phase_peaks import PhasePeaks
from planner.out_of_memory.remedies import Remedy, replay_remedies
from planner.report.recorded_frames import frames_of, module_line, operator_of, own_line, phase_of
from planner.report.style import size


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFailure:
    """One device's failure. `capacity_bytes` is what segments could take: reserved and free together."""

    device: int
    recorded: bool
    """Whether the request itself is in the snapshot; if not, this is the state in which it was taken."""
    failures: int
    size_bytes: int | None
    segment_bytes: int | None
    stream: int
    pool: str
    free_bytes: int | None
    capacity_bytes: int | None
    line: str
    module: str
    operator: str
    phase: Phase | None
    state: AllocatorState
    cause: Cause
    remedies: tuple[Remedy, ...]
    conf: str
    exact: bool
    """Whether the replay up to here made every recorded decision."""
    phase_peaks: Mapping[Phase, int]
    """The most allocated while each phase allocated, as far as frames tell phases."""
    before_forward_bytes: int | None = None
    """Held when the recorded run first came to a forward; None where frames show no forward."""
    sizes: frozenset[int] = frozenset()
    """Every size that was asked for or held: what tells one job's snapshot from another's."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Device:
    recording: Recording
    makers: BlockMakers
    peaks: PhasePeaks
    states: dict[int, AllocatorState] = field(default_factory=dict)


def explain_failures(packed: bytes, place: str, message: GpuFailure | None = None) -> tuple[SnapshotFailure, ...]:
    """The failures in the bytes of a snapshot, one for each device that has any: its last one.

    Of a snapshot without one, the state in which it was taken, of the device that `message` names, else of the one
    that reserved the most; the message's figures then say what failed. Raises SnapshotError as replaying does, but not
    for want of a trace: an observer of failures takes a snapshot whether a history is recorded or not.
    """
    snapshot, content = snapshot_of_bytes(packed, place, traced=False)
    rules = Rules.from_conf(snapshot.conf)
    devices: dict[int, _Device] = {}

    def watch(recording: Recording, index: int, allocator: CachingAllocator) -> None:
        if index < 0:
            trace = content["device_traces"][recording.device] if any(snapshot.traces) else ()
            makers = BlockMakers(recording, trace, content["segments"])
            devices[recording.device] = _Device(recording, makers, PhasePeaks(recording, trace))
        found = devices[recording.device]
        found.peaks.look(index, allocator)
        failed = recording.failures[-1] if recording.failures else None
        if failed is not None and failed.event - 1 == index:
            found.states[index] = state_of(allocator, found.makers, failed.size_bytes, failed.stream)
        elif failed is None and index == len(recording.events) - 1:
            tried = message.tried_bytes if message is not None else None
            found.states[index] = state_of(allocator, found.makers, tried, 0)

    reports = {each.device: each for each in verify(snapshot, watch=watch).devices}
    failed = [number for number, each in devices.items() if each.recording.failures]
    chosen = failed or [_taken_device(devices, message)]
    return tuple(
        _explained(devices[number], reports[number], content, rules, snapshot.conf, message) for number in chosen
    )


def _taken_device(devices: Mapping[int, _Device], message: GpuFailure | None) -> int:
    if message is not None and message.device is not None and message.device in devices:
        return message.device
    return max(devices, key=lambda each: next(iter(devices[each].states.values())).reserved_bytes)


def _explained(
    device: _Device,
    report: DeviceReport,
    content: Mapping[str, Any],
    rules: Rules,
    conf: str,
    message: GpuFailure | None,
) -> SnapshotFailure:
    recording = device.recording
    (state,) = device.states.values()
    failed = recording.failures[-1] if recording.failures else None
    request = failed or _from_message(recording, message)
    frames = frames_of(_failed_entry(content, recording.device)) if failed else []
    segment = None if request is None else rules.segment_size(request.size_bytes)
    free = None if request is None else request.free_bytes
    notes = list(_notes(recording, device.makers, failed, message, state))
    capacity = None if free is None else state.reserved_bytes + free
    if free is not None and segment is not None and free >= segment and not rules.expandable_segments:
        capacity = state.reserved_bytes
        notes.append(
            f"the device had {size(free)} free, and {size(segment)} were asked of it: a limit of the process "
            "(set_per_process_memory_fraction), which a snapshot does not hold, is taken to be what was reserved"
        )
    remedies: tuple[Remedy, ...] = ()
    if request is not None and capacity is not None and rules.per_process_memory_fraction == 1.0:
        remedies = replay_remedies(recording, request, rules, conf, capacity)
        if remedies[0].fits:
            notes.append(
                "in the model the recorded settings fit too, so that the other replays prove nothing: what failed lies "
                "outside of the recording"
            )
        elif remedies[0].earlier:
            notes.append(
                "in the model memory runs out before the request that failed: when that was recorded the process could "
                "take more than at the failure, or less was held by others"
            )
    return SnapshotFailure(
        device=recording.device,
        recorded=failed is not None,
        failures=len(recording.failures),
        size_bytes=None if request is None else request.size_bytes,
        segment_bytes=segment,
        stream=0 if request is None else request.stream,
        pool="" if request is None else "small" if request.size_bytes <= rules.small_bytes else "large",
        free_bytes=free,
        capacity_bytes=capacity,
        line=own_line(frames),
        module=module_line(frames),
        operator=operator_of(frames),
        phase=phase_of(frames),
        state=state,
        cause=_cause(request, state, capacity, free, segment, rules),
        remedies=remedies,
        conf=conf,
        exact=report.first_difference is None,
        phase_peaks=device.peaks.most(),
        before_forward_bytes=device.peaks.before_forward_bytes,
        sizes=device.peaks.sizes(),
        notes=tuple(notes),
    )


def _from_message(recording: Recording, message: GpuFailure | None) -> RecordedFailure | None:
    if message is None or message.tried_bytes is None:
        return None
    return RecordedFailure(len(recording.events), message.tried_bytes, 0, message.free_bytes)


def _failed_entry(content: Mapping[str, Any], device: int) -> Mapping[str, Any]:
    entries: list[Mapping[str, Any]] = [each for each in content["device_traces"][device] if each["action"] == "oom"]
    return entries[-1]


def _cause(
    request: RecordedFailure | None,
    state: AllocatorState,
    capacity: int | None,
    free: int | None,
    segment: int | None,
    rules: Rules,
) -> Cause:
    """As far as one process's allocator can tell: what others hold on the GPU is in no snapshot."""
    if request is None or capacity is None or free is None or segment is None:
        return Cause.UNKNOWN
    if free >= segment and not rules.expandable_segments:
        return Cause.LIMIT
    if request.size_bytes > capacity:
        return Cause.SINGLE_REQUEST
    unallocated = state.reserved_bytes - state.allocated_bytes
    if request.size_bytes <= free + unallocated and unallocated * SMALLEST_SHARE >= capacity:
        return Cause.FRAGMENTATION
    return Cause.FULL


def _notes(
    recording: Recording,
    makers: BlockMakers,
    failed: RecordedFailure | None,
    message: GpuFailure | None,
    state: AllocatorState,
) -> list[str]:
    found = []
    if len(recording.failures) > 1:
        found.append(f"{len(recording.failures)} requests failed; this is the last one")
    if failed is None:
        found.append(
            "no failed request is recorded: this is the state in which the snapshot was taken"
            + ("" if message is None else ", and what failed is the message's")
        )
    if not makers.traced:
        found.append(
            "no history was recorded (torch.cuda.memory._record_memory_history): which lines hold what is not told, "
            "only how large their blocks are"
        )
    if message is not None and message.allocated_bytes is not None:
        here, there = state.allocated_bytes, message.allocated_bytes - message.private_pool_bytes
        if abs(here - there) * 100 > max(here, there):
            found.append(
                f"the message says {size(there)} allocated, the snapshot {size(here)}: they are of different "
                f"moments, or "
                "of different jobs"
            )
    return found
