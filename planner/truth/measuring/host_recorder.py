"""Records what a program asks of its allocator on the CPU, by torch's profiler."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.profiler import ProfilerActivity, profile, record_function

from planner.events import Alloc, Category, Event, Free, Mark, Origin, Phase, Role

COLLECTIVES = ("c10d.", "gloo.")
"""How the operators begin in which a process group takes memory for itself, besides what it is given to fill."""

_MARKER = "planner-marker#"
_WITHOUT_MEMORY = (FakeTensor, FunctionalTensor)
"""What compilers keep of the tensors that they compiled for."""


@dataclass(frozen=True, slots=True)
class _Assignment:
    address: int
    category: Category
    name: str


@dataclass(frozen=True, slots=True)
class _Region:
    category: Category
    name: str
    begins: bool


@dataclass(frozen=True, slots=True)
class HostRecording:
    """The events of one run; `net_bytes` were allocated and not freed, `live_bytes` live tensors account for."""

    events: tuple[Event, ...]
    net_bytes: int
    live_bytes: int


class HostRecorder:
    """Follows a program on the CPU: run it inside `profile()`, then ask for `build_recording()`."""

    def __init__(self) -> None:
        self._notes: list[Mark | _Assignment | _Region] = []
        self._alive: dict[int, int] = {}
        self._tree: list[Any] = []

    @contextmanager
    def profile(self) -> Iterator[None]:
        """Inside, every allocation on the CPU is seen; at its end the live tensors are counted."""
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield
            self._alive = _storages_of_live_tensors()
        self._tree = profiler.profiler.kineto_results.experimental_event_tree()

    def mark(self, phase: Phase, iteration: int) -> None:
        self._note(Mark(phase, iteration))

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.device.type == "cpu":
            self._note(_Assignment(local.untyped_storage().data_ptr(), category, name))

    @contextmanager
    def region(self, category: Category, name: str = "") -> Iterator[None]:
        self._note(_Region(category, name, begins=True))
        try:
            yield
        finally:
            self._note(_Region(category, name, begins=False))

    def build_recording(self) -> HostRecording:
        """The run in planner's own events, a block born with the role that it was given first."""
        builder = _Builder()
        for item in _in_time(self._tree):
            if isinstance(item, int):
                builder.note(self._notes[item])
            else:
                builder.memory(*item)
        return builder.build(self._alive)

    def _note(self, note: Mark | _Assignment | _Region) -> None:
        with record_function(f"{_MARKER}{len(self._notes)}"):
            self._notes.append(note)


class _Builder:
    """Turns memory events by address into events by block."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._at: dict[int, tuple[int, int]] = {}  # address: block, bytes
        self._category: dict[int, Category] = {}
        self._born_as: dict[int, Role] = {}
        self._blocks = 0
        self._region_from = 0

    def memory(self, size: int, address: int, op: str) -> None:
        if address in self._at:  # freed now, or before on a thread that is not profiled
            self._events.append(Free(self._at.pop(address)[0]))
        if size > 0:
            self._at[address] = (self._blocks, size)
            self._events.append(Alloc(self._blocks, size, 0, Origin(op=op)))
            self._blocks += 1

    def note(self, note: Mark | _Assignment | _Region) -> None:
        if isinstance(note, Mark):
            self._events.append(note)
        elif isinstance(note, _Assignment):
            if note.address in self._at:
                self._assign(self._at[note.address][0], note.category, note.name)
        elif note.begins:
            self._region_from = self._blocks
        else:
            for block, _ in self._at.values():
                if block >= self._region_from and block not in self._category:
                    self._assign(block, note.category, note.name)

    def build(self, alive: dict[int, int]) -> HostRecording:
        events: list[Event] = []
        for event in self._events:
            events.append(event)
            if isinstance(event, Alloc) and event.block in self._born_as:
                events.append(self._born_as[event.block])
        accounted = {Category.BUCKET, Category.COMMUNICATION}  # the reducer holds them, in C++
        live = sum(
            size
            for address, (block, size) in self._at.items()
            if address in alive or self._category.get(block) in accounted
        )
        return HostRecording(tuple(events), sum(size for _, size in self._at.values()), live)

    def _assign(self, block: int, category: Category, name: str) -> None:
        before = self._category.get(block)
        if before is category or (before is Category.BUCKET and category is Category.GRADIENT):
            return
        role = Role(block, category, name)
        if before is None:
            self._born_as[block] = role
        else:
            self._events.append(role)
        self._category[block] = category


def _in_time(tree: list[Any]) -> list[int | tuple[int, int, str]]:
    """Markers as their numbers, allocations as (bytes, address, operator), in the order of their times."""
    items: list[tuple[int, int | tuple[int, int, str]]] = []
    waiting = [(event, "") for event in reversed(tree)]
    while waiting:
        event, operator = waiting.pop()
        if event.tag.name == "Allocation":
            extra = event.extra_fields
            if extra.device.type == "cpu":
                items.append((event.start_time_ns, (extra.alloc_size, extra.ptr, operator)))
            continue
        name = event.name
        if name.startswith(_MARKER):
            items.append((event.start_time_ns, int(name.removeprefix(_MARKER))))
        inside = _operator(name, operator)
        waiting += [(child, inside) for child in reversed(event.children)]
    return [item for _, item in sorted(items, key=lambda timed: timed[0])]


def _operator(name: str, around: str) -> str:
    """The innermost operator that is more than a way to say `empty`; in a collective, the collective."""
    if around.startswith(COLLECTIVES):
        return around
    if name.startswith(("c10d::", "gloo:")):
        return name.replace("::", ".").replace(":", ".")
    if not name.startswith("aten::") or name.startswith("aten::empty"):
        return around
    return name.replace("::", ".")


def _storages_of_live_tensors() -> dict[int, int]:
    sizes: dict[int, int] = {}
    for candidate in gc.get_objects():
        # By type: isinstance asks an object for its class, and a lazily loaded module then imports itself.
        if not issubclass(type(candidate), torch.Tensor) or issubclass(type(candidate), _WITHOUT_MEMORY):
            continue
        if candidate.device.type != "cpu":
            continue
        for tensor in (candidate, _gradient(candidate)):
            # A DTensor has no storage of its own; what it holds is found by itself.
            if tensor is not None and tensor.layout is torch.strided and not hasattr(tensor, "_local_tensor"):
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sizes


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:  # one of several views whose base was written since: it refuses to say, and is not a leaf
        return None
