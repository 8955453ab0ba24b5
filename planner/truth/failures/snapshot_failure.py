"""A failure as a snapshot recorded it: what failed, who held what, and what other settings would have done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.conf import read_options
from planner.allocator.recording import RecordedFailure, Recording
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.snapshot import snapshot_of_bytes
from planner.allocator.verify import allocations_before, start_allocator, verify
from planner.events import Alloc, Event, Free, Phase
from planner.records import shape
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
    holders: tuple[Holding, ...]
    others_bytes: int


Frames = Sequence[Mapping[str, Any]]


class _Watch:
    """Follows one device's recording event by event: which line made each block, and what each phase held at most.

    A phase reaches from the first request made in it to the next phase's.
    """

    def __init__(self, recording: Recording, trace: Frames, segments: Iterable[Any]) -> None:
        self.recording = recording
        self.traced = bool(trace)
        """Whether a history was recorded at all: else nothing is known of when a block was made."""
        self.phase_peaks: dict[Phase, int] = {}
        """Bytes by phase."""
        self.before_forward_bytes: int | None = None
        """What was held when the recorded run first came to a forward: parameters, and states if there were any."""
        self._phase: Phase | None = None
        self._before = 0
        born = [event.block for event in recording.events if isinstance(event, Alloc)]
        frames = [frames_of(entry) for entry in trace if entry["action"] == "alloc"]
        self._frames: dict[int, Frames] = dict(zip(born, frames, strict=True))
        self._phases = {block: phase_of(its_frames) for block, its_frames in self._frames.items()}
        at_end = _frames_by_address(segments, recording.device)
        freed = {event.block for event in recording.events if isinstance(event, Free)}
        self._at_start: dict[int, int] = {}
        for segment in recording.start:
            address = segment.address
            for piece in segment.stretches:
                if piece.block is not None:
                    self._at_start[piece.block] = piece.requested_bytes
                    # A block that was given up later may have had a follower at its address.
                    self._frames[piece.block] = [] if piece.block in freed else at_end.get(address, [])
                address += piece.size
        self._framed = any(self._frames.values())

    def look(self, index: int, allocator: CachingAllocator) -> None:
        """After event `index`; -1 is before the first."""
        before, self._before = self._before, allocator.allocated
        if index < 0:
            return
        event = self.recording.events[index]
        if isinstance(event, Alloc):
            self._phase = self._phases[event.block] or self._phase
            if self._phase is Phase.FORWARD and self.before_forward_bytes is None:
                self.before_forward_bytes = before
        if self._phase is not None:
            self.phase_peaks[self._phase] = max(self.phase_peaks.get(self._phase, 0), allocator.allocated)

    def sizes(self) -> frozenset[int]:
        asked = (event.requested_bytes for event in self.recording.events if isinstance(event, Alloc))
        return frozenset((*self._at_start.values(), *asked))

    def state(self, allocator: CachingAllocator, size_bytes: int | None, stream: int) -> AllocatorState:
        """The state now; `size_bytes` and `stream` are of the request that failed, None where it is not known."""
        small = size_bytes is not None and size_bytes <= allocator.rules.small_bytes
        inactive = cached = largest = pooled = 0
        for block in allocator.blocks():
            if not block.free or not block.mapped:
                continue
            beside = (block.before, block.after)
            used = any(neighbour is not None and neighbour.mapped and not neighbour.free for neighbour in beside)
            inactive += block.size if used else 0
            cached += 0 if used else block.size
            if block.pool.small is small and block.pool.stream == stream and not block.pool.private:
                largest, pooled = max(largest, block.size), pooled + block.size
        holders = self._holders(allocator)
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
            others_bytes=sum(holder.bytes for holder in holders[_MOST_HOLDERS:]),
        )

    def _holders(self, allocator: CachingAllocator) -> list[Holding]:
        sizes: dict[tuple[str, str, Phase | None], list[int]] = defaultdict(list)
        for block, size_bytes in allocator.held():
            frames = self._frames.get(block, [])
            line, module, phase = own_line(frames), module_line(frames), phase_of(frames)
            if not line:
                module, phase = "", None
                line = _WITHOUT_FRAMES if self._framed else f"{size_bytes:,} bytes each, {_WITHOUT_FRAMES}"
                if self.traced and block in self._at_start:
                    line = _BEFORE
            sizes[line, module, phase].append(size_bytes)
        holders = [
            Holding(line=line, module=module, phase=phase, bytes=sum(held), count=len(held))
            for (line, module, phase), held in sizes.items()
        ]
        return sorted(holders, key=lambda holder: (-holder.bytes, holder.line, holder.module))


def _frames_by_address(segments: Iterable[Any], device: int) -> dict[int, Frames]:
    """Of the blocks that were in use at the end of the recording."""
    frames: dict[int, Frames] = {}
    for segment in segments:
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                frames[address] = frames_of(block)
            address += block["size"]
    return frames


SETTINGS: tuple[dict[str, str], ...] = (
    {"expandable_segments": "True"},
    {"max_split_size_mb": "128"},
    {"max_split_size_mb": "512"},
    # Without a fraction below 1 the threshold does nothing (CUDACachingAllocator.cpp, set_fraction).
    {"garbage_collection_threshold": "0.8", "per_process_memory_fraction": "0.99"},
    {"roundup_power2_divisions": "4"},
    {"roundup_power2_divisions": "8"},
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
    cache_releases: int
    same: bool = False
    """The recorded settings, with the recorded layout of the start."""
    earlier: bool = False
    """Whether it ran out before the request that failed in the recording."""
    missing_bytes: int | None = None
    """Of the recorded settings: with so much more the request would have been served."""


def _replay_remedies(
    recording: Recording, failure: RecordedFailure, rules: Rules, conf: str, capacity_bytes: int
) -> tuple[Remedy, ...]:
    """The recorded settings first, as a check of the model: it too must run out there; then each other setting."""
    start = allocations_before(recording)
    named = [event.block for event in (*start, *recording.events) if isinstance(event, Alloc)]
    request = Alloc(max(named, default=-1) + 1, failure.size_bytes, failure.stream)
    events = [*recording.events[: failure.event], request]
    anew = [*start, *events]
    remedies = [_replay_as_recorded(recording, events, rules, conf, capacity_bytes)]
    recorded = dict(read_options(conf))
    for options in SETTINGS:
        if options.items() <= recorded.items():
            continue
        others = (f"{option}:{value}" for option, value in read_options(conf) if option not in options)
        other = ",".join([*others, *(f"{option}:{value}" for option, value in options.items())])
        timeline = replay(anew, Rules.from_conf(other), capacity_bytes)
        out = timeline.out_of_memory
        remedies.append(
            Remedy(
                conf=other,
                fits=out is None,
                exact=not recording.start,
                reserved_bytes=timeline.peak_reserved_bytes,
                cache_releases=timeline.cache_releases,
                earlier=out is not None and out.event_index < len(anew) - 1,
            )
        )
    return tuple(remedies)


def _replay_as_recorded(
    recording: Recording, events: Sequence[Event], rules: Rules, conf: str, capacity_bytes: int
) -> Remedy:
    allocator = start_allocator(recording, rules, Device(capacity_bytes))
    failed = next((index for index, event in enumerate(events) if not allocator.take(event)), None)
    remedy = Remedy(
        conf=conf,
        fits=failed is None,
        exact=True,
        reserved_bytes=allocator.peak_reserved,
        cache_releases=allocator.cache_releases,
        same=True,
        earlier=failed is not None and failed < len(events) - 1,
    )
    if failed != len(events) - 1:
        return remedy
    # How much more the device would have to have, to 2 MiB: tried upwards from what is missing at least.
    request, device, step = events[-1], allocator.device, rules.round_large_bytes
    assert isinstance(request, Alloc)
    free = allocator.reserved - allocator.active if rules.expandable_segments else 0
    left = capacity_bytes - device.taken_bytes
    least = max(rules.segment_size(rules.round_size(request.requested_bytes)) - left - free, 0) // step * step
    for more in range(least, least + _MOST_STEPS * step, step):
        device.capacity_bytes = capacity_bytes + more
        if allocator.take(request):
            return replace(remedy, missing_bytes=more)
    return remedy


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
    sizes: frozenset[int] = field(default=frozenset(), metadata=shape(skip=True))
    notes: tuple[str, ...] = ()


def explain_failures(packed: bytes, place: str, message: GpuFailure | None = None) -> tuple[SnapshotFailure, ...]:
    """The failures in the bytes of a snapshot, one for each device that has any: its last one.

    Of a snapshot without one, the state in which it was taken, of the device that `message` names, else of the one
    that reserved the most; the message's figures then say what failed. Raises SnapshotError as replaying does, but not
    for want of a trace: an observer of failures takes a snapshot whether a history is recorded or not.
    """
    snapshot, content = snapshot_of_bytes(packed, place, traced=False)
    rules = Rules.from_conf(snapshot.conf)
    watches: dict[int, _Watch] = {}
    states: dict[int, AllocatorState] = {}

    def watch(recording: Recording, index: int, allocator: CachingAllocator) -> None:
        device = recording.device
        if index < 0:
            trace = content["device_traces"][device] if any(snapshot.traces) else ()
            watches[device] = _Watch(recording, trace, content["segments"])
        watches[device].look(index, allocator)
        failed = recording.failures[-1] if recording.failures else None
        if failed is not None and failed.event - 1 == index:
            states[device] = watches[device].state(allocator, failed.size_bytes, failed.stream)
        elif failed is None and index == len(recording.events) - 1:
            tried = message.tried_bytes if message is not None else None
            states[device] = watches[device].state(allocator, tried, 0)

    reports = verify(snapshot, watch=watch).devices
    chosen = [device for device, its_watch in watches.items() if its_watch.recording.failures]
    if not chosen:
        named = [device for device in watches if message is not None and message.device == device]
        chosen = named or [max(states, key=lambda device: states[device].reserved_bytes)]
    exact = {report.device: report.first_difference is None for report in reports}
    failures = []
    for device in chosen:
        trace = content["device_traces"][device] if watches[device].recording.failures else ()
        frames = next((frames_of(entry) for entry in reversed(trace) if entry["action"] == "oom"), [])
        failures.append(_explain(watches[device], states[device], frames, rules, snapshot.conf, exact[device], message))
    return tuple(failures)


def _explain(
    watch: _Watch,
    state: AllocatorState,
    frames: Frames,
    rules: Rules,
    conf: str,
    exact: bool,
    message: GpuFailure | None,
) -> SnapshotFailure:
    recording = watch.recording
    request = failed = recording.failures[-1] if recording.failures else None
    if failed is None and message is not None and message.tried_bytes is not None:
        request = RecordedFailure(len(recording.events), message.tried_bytes, 0, message.free_bytes)
    notes = [*_notes(watch, message, state)]
    segment = free = capacity = None
    cause = Cause.UNKNOWN
    if request is not None:
        segment, free = rules.segment_size(request.size_bytes), request.free_bytes
        if free is not None:
            capacity = state.reserved_bytes + free
            cause = _cause(request.size_bytes, state, free)
            if free >= segment and not rules.expandable_segments:
                capacity, cause = state.reserved_bytes, Cause.LIMIT
                notes.append(
                    f"the device had {size(free)} free, and {size(segment)} were asked of it: a limit of the process "
                    "(set_per_process_memory_fraction), which a snapshot does not hold, is taken to be what was "
                    "reserved"
                )
    remedies: tuple[Remedy, ...] = ()
    if request is not None and capacity is not None and rules.per_process_memory_fraction == 1.0:
        remedies = _replay_remedies(recording, request, rules, conf, capacity)
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
        cause=cause,
        remedies=remedies,
        conf=conf,
        exact=exact,
        phase_peaks={phase: watch.phase_peaks[phase] for phase in Phase if phase in watch.phase_peaks},
        before_forward_bytes=watch.before_forward_bytes,
        sizes=watch.sizes(),
        notes=tuple(notes),
    )


def _cause(size_bytes: int, state: AllocatorState, free: int) -> Cause:
    """As far as one process's allocator can tell: what others hold on the GPU is in no snapshot."""
    capacity, unallocated = state.reserved_bytes + free, state.reserved_bytes - state.allocated_bytes
    if size_bytes > capacity:
        return Cause.SINGLE_REQUEST
    if size_bytes <= free + unallocated and unallocated * SMALLEST_SHARE >= capacity:
        return Cause.FRAGMENTATION
    return Cause.FULL


def _notes(watch: _Watch, message: GpuFailure | None, state: AllocatorState) -> Iterator[str]:
    failures = watch.recording.failures
    if len(failures) > 1:
        yield f"{len(failures)} requests failed; this is the last one"
    if not failures:
        of_message = "" if message is None else ", and what failed is the message's"
        yield f"no failed request is recorded: this is the state in which the snapshot was taken{of_message}"
    if not watch.traced:
        yield (
            "no history was recorded (torch.cuda.memory._record_memory_history): which lines hold what is not told, "
            "only how large their blocks are"
        )
    if message is not None and message.allocated_bytes is not None:
        here, there = state.allocated_bytes, message.allocated_bytes - message.private_pool_bytes
        if abs(here - there) * 100 > max(here, there):
            yield (
                f"the message says {size(there)} allocated, the snapshot {size(here)}: they are of different moments, "
                "or of different jobs"
            )
