"""What a recorded snapshot shows: its frames, its memory over time, and the text of `planner replay`."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import Recording
from planner.allocator.snapshot import snapshot_of_bytes
from planner.allocator.verify import verify
from planner.events import Alloc, Category, Free, Phase
from planner.report.attribution import HolderKey
from planner.report.class_timeline import Places, largest_holders, moments_of
from planner.report.style import Style, join_lines, size, wrap

_LONGEST = 160
"""Characters of what is said of a frame."""
_OPERATOR = re.compile(r"at::_ops::(\w{1,80})::call\(")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w{1,80})::apply\(")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/", re.IGNORECASE)
PLANNED = "planned"
"""The key by which planner tells its own frames: what each of them says (`ORIGIN`, `ROLE`, `PHASE`)."""
ORIGIN, ROLE, PHASE = "origin", "role", "phase"
_CALL = ("_call_impl", "_wrapped_call_impl", "__call__")
_BACKWARD = ("backward", "_engine_run_backward", "run_backward")


def frames_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The frames of an allocation or of a block, innermost first; of torch before 2.1 those of its last history."""
    frames = entry.get("frames")
    history = entry.get("history")
    if not frames and isinstance(history, list | tuple) and history and isinstance(history[0], Mapping):
        frames = history[0].get("frames")
    return [frame for frame in frames if isinstance(frame, Mapping)] if isinstance(frames, list | tuple) else []


def own_line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost line of the program itself: what is not in torch's own files, else whatever was recorded.

    Inside of a module of the program's own, a library that it calls (einops, say) is passed over: the module's line
    tells one use from another. Autograd's thread has no line of Python; there it is what autograd worked at.
    """
    if named := _planned(frames, ROLE):
        return f"{_file(named)} {_name(named)}"[:_LONGEST]
    python = [frame for frame in frames if _file(frame).endswith(".py")]
    own = [frame for frame in python if not _of_torch(frame)]
    module = next((index for index, frame in enumerate(own) if frame.get("name") == "forward"), None)
    if module is not None and not _of_library(own[module]):
        own = [frame for frame in own[: module + 1] if not _of_library(frame)]
    if not python and (worked := _autograds_work(frames)):
        return worked
    return next((_said(frame) for frame in (*own[:1], *python[:1], *frames[:1])), "")


def _autograds_work(frames: Sequence[Mapping[str, Any]]) -> str:
    """The node of autograd's graph in these C++ frames, else the operator by which its engine adds gradients up."""
    if not any("autograd::Engine" in _name(frame) for frame in frames):
        return ""
    nodes = (_NODE.search(_name(frame)) for frame in frames)
    return f"autograd {next((node[1] for node in nodes if node), operator_of(frames) or 'engine')}"


def module_line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost `forward` that is not torch's own: the module whose work it was; empty where frames show none."""
    if planned := _planned(frames, ORIGIN):
        return _file(planned)
    return next((_said(frame) for frame in frames if frame.get("name") == "forward" and not _of_torch(frame)), "")


def operator_of(frames: Sequence[Mapping[str, Any]]) -> str:
    """The operator that the program called, as `aten.relu`, where C++ frames were recorded; else empty."""
    if planned := _planned(frames, ORIGIN):
        return _name(planned)
    calls = (_OPERATOR.search(_name(frame)) for frame in reversed(frames))
    return next((f"aten.{call[1]}" for call in calls if call), "")


def phase_of(frames: Sequence[Mapping[str, Any]]) -> Phase | None:
    """In which phase of training these frames lie; None where they do not show one.

    A recomputed forward has frames of both, and is of the backward; C++ frames have the names of autograd's engine.
    """
    if planned := _planned(frames, PHASE):
        return next((phase for phase in Phase if phase.value == _name(planned)), None)
    if any(_of_torch(frame, "/torch/optim/") for frame in frames):
        return Phase.OPTIMIZER_STEP
    if any(
        (frame.get("name") in _BACKWARD and _of_torch(frame)) or "autograd::Engine" in _name(frame) for frame in frames
    ):
        return Phase.BACKWARD
    if any(frame.get("name") in _CALL and _of_torch(frame, "/torch/nn/modules/module.py") for frame in frames):
        return Phase.FORWARD
    return None


def _of_torch(frame: Mapping[str, Any], part: str = "/torch/") -> bool:
    return part in _file(frame)


def _of_library(frame: Mapping[str, Any]) -> bool:
    return _LIBRARY.search(_file(frame)) is not None


def _file(frame: Mapping[str, Any]) -> str:
    """With slashes: Windows records backslashes."""
    return str(frame.get("filename", "")).replace("\\", "/")


def _name(frame: Mapping[str, Any]) -> str:
    return str(frame.get("name", ""))


def short_path(path: str) -> str:
    """Its last three parts, and the root where nothing else stands before them."""
    last = "/".join(path.split("/")[-3:])
    return path if path == f"/{last}" else last


def _said(frame: Mapping[str, Any]) -> str:
    if frame.get(PLANNED) == ORIGIN:
        return f"{_file(frame)} {_name(frame)}"[:_LONGEST]
    return f"{short_path(_file(frame))}:{frame.get('line', '')} {_name(frame)}"[:_LONGEST]


def _planned(frames: Sequence[Mapping[str, Any]], about: str) -> Mapping[str, Any] | None:
    return next((frame for frame in frames if frame.get(PLANNED) == about), None)


POINTS = 700
_BEFORE = HolderKey(Category.OTHER, "held before the recording began", "", (), "")
_UNKNOWN = HolderKey(Category.OTHER, "no frames were recorded", "", (), "")


def explain(packed: bytes, conf: str | None = None, place: str = "the body") -> dict[str, Any]:
    """`planner.replay/1` with a `timeline` and the failures of each device; `conf`: what another
    PYTORCH_ALLOC_CONF would have reserved.

    Raises SnapshotError for what is not a snapshot, AllocatorConfError for a conf that is not modelled.
    """
    snapshot, content = snapshot_of_bytes(packed, place)
    watched: dict[int, _Watched] = {}

    def watch(recording: Recording, index: int, allocator: CachingAllocator) -> None:
        if index < 0:
            watched[recording.device] = _Watched(recording, content["device_traces"][recording.device])
        watched[recording.device].look(index, allocator)

    report = verify(snapshot, conf, watch=watch).to_json()
    for device in report["devices"]:
        number = device["device"]
        device["timeline"] = watched[number].to_json()
        device["out_of_memory"] = [
            {"requested_bytes": entry["size"], "free_bytes": entry.get("device_free")}
            for entry in content["device_traces"][number]
            if entry["action"] == "oom"
        ]
    return {**report, "conf": snapshot.conf}


@dataclass(slots=True)
class _Watched:
    """One device's allocator, event by event."""

    recording: Recording
    entries: Sequence[Mapping[str, Any]]
    allocated: array[int] = field(default_factory=lambda: array("q"))
    reserved: array[int] = field(default_factory=lambda: array("q"))
    _changes: list[tuple[int, HolderKey, int]] = field(default_factory=list)
    _latest: int = 0
    _held: dict[int, tuple[HolderKey, int]] = field(default_factory=dict)
    _frames: Iterator[HolderKey] = field(init=False)

    def __post_init__(self) -> None:
        # Allocations of the trace and of its events have the same order.
        self._frames = (_holder_of(entry) for entry in self.entries if entry["action"] == "alloc")

    def look(self, index: int, allocator: CachingAllocator) -> None:
        before, self._latest = self._latest, allocator.allocated
        if index < 0:
            for segment in self.recording.start:
                for piece in segment.stretches:
                    if piece.block is not None and not piece.waiting:
                        self._held[piece.block] = _BEFORE, piece.size
                        self._changes.append((0, _BEFORE, piece.size))
            return
        event = self.recording.events[index]
        if isinstance(event, Alloc):
            self._held[event.block] = next(self._frames), allocator.allocated - before
            self._changes.append((index, *self._held[event.block]))
        elif isinstance(event, Free) and event.block in self._held:
            key, size = self._held.pop(event.block)
            self._changes.append((index, key, -size))
        self.allocated.append(allocator.allocated)
        self.reserved.append(allocator.reserved)

    def to_json(self) -> dict[str, Any]:
        """In the form of planner.report.class_timeline, of which there are no phases and no categories."""
        at = moments_of(self.allocated, POINTS)
        allocated = [self.allocated[event] for event in at]
        places = Places(at, allocated, [(0, len(self.allocated))])
        peak = max(range(len(self.allocated)), key=self.allocated.__getitem__, default=0)
        placed = ((bisect_left(at, index), key, change) for index, key, change in self._changes)
        changes = ((place, key, change) for place, key, change in placed if place < len(at))
        return {
            "events": len(self.allocated),
            "capacity_bytes": 0,
            "outside_bytes": 0,
            "peak": {"event": peak, "allocated_bytes": self.allocated[peak] if self.allocated else 0},
            "at": at,
            "places": [places.of(event) for event in at],
            "allocated_bytes": {"allocated": allocated},
            "reserved_bytes": [self.reserved[event] for event in at],
            "phases": [],
            **largest_holders(changes, len(at), most=10),
        }


def _holder_of(entry: Mapping[str, Any]) -> HolderKey:
    line = own_line(frames_of(entry))
    return HolderKey(Category.OTHER, line, "", (), "") if line else _UNKNOWN


_LABEL, _COUNT = 18, 12


def render_replay(name: str, report: Mapping[str, Any], style: Style) -> str:
    """`name` is what people call the snapshot, `report` the object of the contract."""
    devices = report["devices"]
    exact = all(
        device.get("first_difference") is None
        and all(pair["matched"] == pair["total"] for pair in (device["addresses"], device["segments"]))
        for device in devices
    )
    lines = [style.paint(name, "bold")]
    for device in devices:
        lines += ["", *_device(device, style)]
    if not devices:
        lines += ["", style.paint("The snapshot holds no events.", "yellow")]
    elif exact:
        total = {kind: sum(device[kind]["total"] for device in devices) for kind in ("addresses", "segments")}
        replayed = f"{_counted(total['addresses'], 'allocation')} and {_counted(total['segments'], 'segment')}"
        said = f"Every address and every segment is the recorded one: {replayed} were replayed."
        lines += ["", *(style.paint(line, "green") for line in wrap(said, style.width))]
    else:
        lines += ["", style.paint("Not every decision of the allocator was replayed.", "yellow")]
    return join_lines(lines)


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _device(device: Mapping[str, Any], style: Style) -> Iterator[str]:
    reserved = device["peak_reserved_bytes"]
    yield style.paint(f"device {device['device']}", "bold")
    yield f"  {'events':<{_LABEL}}{device['events']:>{_COUNT},}"
    for label in ("addresses", "segments"):
        done, total = device[label]["matched"], device[label]["total"]
        # Rounding must not turn a miss into 100 %.
        shown = "100 %" if done == total else f"{min(done / total, 0.9999):.2%}".replace("%", " %")
        row = f"  {label:<{_LABEL}}{done:>{_COUNT},} of {total:,}   {shown}"
        yield style.paint(row, "green" if done == total else "yellow")
    if before := device.get("blocks_before"):
        held = f"{_counted(before, 'block')}, {size(device['bytes_before'])}"
        yield f"  {'held before':<{_LABEL}}{held}: not replayed"
    yield f"  {'peak allocated':<{_LABEL}}{size(device['peak_allocated_bytes']):>{_COUNT}}"
    yield f"  {'peak reserved':<{_LABEL}}{size(reserved):>{_COUNT}}"
    if (first := device.get("first_difference")) is not None:
        yield f"  first difference at event {first['event']:,}, in its {first['what']}:"
        yield f"    recorded  {first['recorded']}"
        yield f"    replayed  {first['replayed']}"
    if (other := device.get("what_if")) is not None:
        saved = reserved - other["peak_reserved_bytes"]
        change = "the same" if saved == 0 else f"{size(abs(saved))} {'less' if saved > 0 else 'more'}"
        about = "" if other.get("exact", True) else ", about: in which order its first blocks were made is not recorded"
        yield style.paint(f"  with {other['conf'] or 'the default settings'}", "bold")
        yield f"  {'peak reserved':<{_LABEL}}{size(other['peak_reserved_bytes']):>{_COUNT}}, {change}{about}"
