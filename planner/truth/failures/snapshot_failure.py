"""A failure as a snapshot recorded it: what failed, who held what, and what other settings would have done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import RecordedFailure, Recording
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.snapshot import snapshot_of_bytes
from planner.allocator.verify import DeviceReport, allocations_before, start_allocator, verify
from planner.events import Alloc, Event, Free, Phase
from planner.report.recorded_snapshot import frames_of, module_line, operator_of, own_line, phase_of
from planner.report.style import size
from planner.truth.failures.causes import SMALLEST_SHARE
from planner.truth.failures.messages import Cause, GpuFailure

_MOST_HOLDERS = 12
_BEFORE = "held before the recording began"
_WITHOUT_FRAMES = "no frames were recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Blocks that one line of the program allocated and that were still held."""

    line: str
    module: str
    phase: Phase | None
    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorState:
    """Bytes in blocks and between them. `cached` is what a release of the cache would give back."""

    requested_bytes: int
    allocated_bytes: int
    waiting_bytes: int
    """Given up by the program, in use on another stream."""
    reserved_bytes: int
    inactive_split_bytes: int
    """Free beside used blocks of the same segment: the device cannot have it back."""
    cached_bytes: int
    largest_free_bytes: int
    """The largest free block of the pool in which the request looked."""
    pool_free_bytes: int
    """All free blocks of that pool."""
    holders: tuple[Holding, ...]
    others_bytes: int
    """Of holders that are not listed."""


@dataclass(frozen=True, slots=True)
class _Maker:
    line: str
    module: str
    phase: Phase | None


class BlockMakers:
    """Which line made each block of a recording, as far as it has frames; where it has none, how large the block is."""

    def __init__(self, recording: Recording, trace: Sequence[Mapping[str, Any]], segments: Iterable[Any]) -> None:
        self.traced = bool(trace)
        """Whether a history was recorded at all: else nothing is known of when a block was made."""
        freed = {event.block for event in recording.events if isinstance(event, Free)}
        at = _frames_by_address(segments, recording.device)
        self._frames: dict[int, Sequence[Mapping[str, Any]]] = {}
        self._before: set[int] = set()
        for segment in recording.start:
            address = segment.address
            for piece in segment.stretches:
                if piece.block is not None:
                    self._before.add(piece.block)
                    # A block that was given up later may have had a follower at its address.
                    self._frames[piece.block] = [] if piece.block in freed else at.get(address, [])
                address += piece.size
        born = (event.block for event in recording.events if isinstance(event, Alloc))
        self._frames.update(zip(born, (frames_of(each) for each in trace if each["action"] == "alloc"), strict=True))
        self._framed = any(self._frames.values())

    def maker(self, block: int, size: int) -> _Maker:
        frames = self._frames.get(block, [])
        line = own_line(frames)
        if line:
            return _Maker(line, module_line(frames), phase_of(frames))
        if self.traced and block in self._before:
            return _Maker(_BEFORE, "", None)
        return _Maker(_WITHOUT_FRAMES if self._framed else f"{size:,} bytes each, {_WITHOUT_FRAMES}", "", None)


def state_of(allocator: CachingAllocator, makers: BlockMakers, size_bytes: int | None, stream: int) -> AllocatorState:
    """The state now; `size_bytes` and `stream` are of the request that failed, None where it is not known."""
    small = size_bytes is not None and size_bytes <= allocator.rules.small_bytes
    inactive = cached = largest = pooled = 0
    for block in allocator.blocks():
        if not block.free or not block.mapped:
            continue
        used = any(each is not None and each.mapped and not each.free for each in (block.before, block.after))
        inactive += block.size if used else 0
        cached += 0 if used else block.size
        if block.pool.small is small and block.pool.stream == stream and not block.pool.private:
            largest, pooled = max(largest, block.size), pooled + block.size
    holders = _holders(allocator, makers)
    return AllocatorState(
        requested_bytes=allocator.requested,
        allocated_bytes=allocator.allocated,
        waiting_bytes=allocator.active - allocator.allocated,
        reserved_bytes=allocator.reserved,
        inactive_split_bytes=inactive,
        cached_bytes=cached,
        largest_free_bytes=largest,
        pool_free_bytes=pooled,
        holders=tuple(holders[:_MOST_HOLDERS]),
        others_bytes=sum(each.bytes for each in holders[_MOST_HOLDERS:]),
    )


def _holders(allocator: CachingAllocator, makers: BlockMakers) -> list[Holding]:
    sums: dict[_Maker, list[int]] = defaultdict(lambda: [0, 0])
    for name, block_bytes in allocator.held():
        total = sums[makers.maker(name, block_bytes)]
        total[0] += block_bytes
        total[1] += 1
    found = [
        Holding(line=maker.line, module=maker.module, phase=maker.phase, bytes=held_bytes, count=count)
        for maker, (held_bytes, count) in sums.items()
    ]
    return sorted(found, key=lambda each: (-each.bytes, each.line, each.module))


def _frames_by_address(segments: Iterable[Any], device: int) -> dict[int, list[Mapping[str, Any]]]:
    """Of the blocks that were in use at the end of the recording."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for segment in segments:
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                found[address] = frames_of(block)
            address += block["size"]
    return found


class PhasePeaks:
    """Follows a recording event by event; a phase reaches from the first request made in it to the next phase's."""

    def __init__(self, recording: Recording, trace: Sequence[Mapping[str, Any]]) -> None:
        self._recording = recording
        entries = (each for each in trace if each["action"] == "alloc")
        born = (event.block for event in recording.events if isinstance(event, Alloc))
        self._phases = dict(zip(born, (phase_of(frames_of(each)) for each in entries), strict=True))
        self._now: Phase | None = None
        self._most: dict[Phase, int] = {}
        self.before_forward_bytes: int | None = None
        """What was held when the recorded run first came to a forward: parameters, and states if there were any."""
        self._before = 0

    def look(self, index: int, allocator: CachingAllocator) -> None:
        """After event `index`; -1 is before the first."""
        if index < 0:
            self._before = allocator.allocated
            return
        event = self._recording.events[index]
        if isinstance(event, Alloc):
            self._now = self._phases[event.block] or self._now
            if self._now is Phase.FORWARD and self.before_forward_bytes is None:
                self.before_forward_bytes = self._before
        self._before = allocator.allocated
        if self._now is not None:
            self._most[self._now] = max(self._most.get(self._now, 0), allocator.allocated)

    def most(self) -> Mapping[Phase, int]:
        """Bytes by phase, in the order of a step."""
        return {phase: self._most[phase] for phase in Phase if phase in self._most}

    def sizes(self) -> frozenset[int]:
        """Every size that was asked for, or that a block at the start had."""
        held = (
            piece.requested_bytes
            for each in self._recording.start
            for piece in each.stretches
            if piece.block is not None
        )
        asked = (event.requested_bytes for event in self._recording.events if isinstance(event, Alloc))
        return frozenset((*held, *asked))


SETTINGS: tuple[tuple[str, ...], ...] = (
    ("expandable_segments:True",),
    ("max_split_size_mb:128",),
    ("max_split_size_mb:512",),
    # Without a fraction below 1 the threshold does nothing (CUDACachingAllocator.cpp, set_fraction).
    ("garbage_collection_threshold:0.8", "per_process_memory_fraction:0.99"),
    ("roundup_power2_divisions:4",),
    ("roundup_power2_divisions:8",),
)
"""Those that torch's notes on memory management name against fragmentation."""

_MOST_STEPS = 4096
"""8 GiB beyond what is missing at least, in steps of 2 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One replay. `exact` is False where the recording did not begin empty: what was there is laid out anew."""

    conf: str
    fits: bool
    exact: bool
    reserved_bytes: int
    """The most that was reserved, up to the failure or beyond it."""
    cache_releases: int
    same: bool = False
    """The recorded settings, with the recorded layout of the start."""
    earlier: bool = False
    """Whether it ran out before the request that failed in the recording."""
    missing_bytes: int | None = None
    """Of the recorded settings: with so much more the request would have been served."""


def replay_remedies(
    recording: Recording, failure: RecordedFailure, rules: Rules, conf: str, capacity_bytes: int
) -> tuple[Remedy, ...]:
    """The recorded settings first, as a check of the model: it too must run out there; then each other setting."""
    events = [*recording.events[: failure.event], _failing(recording, failure)]
    anew = [*allocations_before(recording), *events]
    exact = not recording.start
    found = [_as_recorded(recording, events, rules, conf, capacity_bytes)]
    for options in SETTINGS:
        other = _merged(conf, options)
        if other == conf:
            continue
        timeline = replay(anew, Rules.from_conf(other), capacity_bytes)
        found.append(
            Remedy(
                conf=other,
                fits=timeline.out_of_memory is None,
                exact=exact,
                reserved_bytes=timeline.peak_reserved_bytes,
                cache_releases=timeline.cache_releases,
                earlier=timeline.out_of_memory is not None and timeline.out_of_memory.event_index < len(anew) - 1,
            )
        )
    return tuple(found)


def _failing(recording: Recording, failure: RecordedFailure) -> Alloc:
    named = [event.block for event in recording.events if isinstance(event, Alloc)]
    held = [piece.block for segment in recording.start for piece in segment.stretches if piece.block is not None]
    return Alloc(max([*named, *held], default=-1) + 1, failure.size_bytes, failure.stream)


def _merged(conf: str, options: Sequence[str]) -> str:
    """The conf with these options in place of what it says of them."""
    keys = {each.partition(":")[0] for each in options}
    depth, parts, part = 0, [], ""
    for character in "".join(conf.split()) + ",":
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts += [part] if part else []
            part = ""
        else:
            part += character
    if all(option in parts for option in options):
        return conf
    return ",".join([*(each for each in parts if each.partition(":")[0] not in keys), *options])


def _as_recorded(recording: Recording, events: Sequence[Event], rules: Rules, conf: str, capacity_bytes: int) -> Remedy:
    allocator = start_allocator(recording, rules, Device(capacity_bytes))
    failed = next((index for index, event in enumerate(events) if not allocator.take(event)), None)
    last = len(events) - 1
    return Remedy(
        conf=conf,
        fits=failed is None,
        exact=True,
        reserved_bytes=allocator.peak_reserved,
        cache_releases=allocator.cache_releases,
        same=True,
        earlier=failed is not None and failed < last,
        missing_bytes=_missing(allocator, events[last], capacity_bytes) if failed == last else None,
    )


def _missing(allocator: CachingAllocator, request: Event, capacity_bytes: int) -> int | None:
    """How much more the device would have to have, to 2 MiB: tried upwards from what is missing at least."""
    assert isinstance(request, Alloc)
    rules, device = allocator.rules, allocator.device
    free = allocator.reserved - allocator.active if rules.expandable_segments else 0
    step = rules.round_large_bytes
    left = capacity_bytes - device.taken_bytes
    more = max(rules.segment_size(rules.round_size(request.requested_bytes)) - left - free, 0) // step * step
    for _ in range(_MOST_STEPS):
        device.capacity_bytes = capacity_bytes + more
        if allocator.take(request):
            return more
        more += step
    return None


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
