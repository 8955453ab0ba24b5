"""Draws the batches of a program's data loaders ahead, and gives the program the largest of them early.

A child process draws them by an iterator of the same loader, as a worker would: random states and whatever else the
data change stay as they are in the program, whose own iterator then comes to the same epoch. After some usual batches
that iterator gives the chosen ones in the place of its next.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

from planner import upstream
from planner.runtime.own_code import is_programs
from planner.tracing.batch_sizes import (
    FEW,
    DrawnBatches,
    LargestBatches,
    Shapes,
    TriedBatch,
    read_extents,
    varying,
    varying_extents,
)
from planner.tracing.program.assumptions import About, Assumptions, short_path
from planner.tracing.program.child_answers import fork_off
from planner.tracing.program.input_sizes import read_shapes

SECONDS = 60.0
"""For all loaders of a program together, where it is not said how many batches are drawn; without those in which a
processor was waited for, so that other processes do not change how many come."""
_EVALUATING = 0.25
"""Of what is left of them, for a loader that is gone through without gradients: it may come before the training."""
_UNIFORM, _UNIFORM_SECONDS = 100, 5.0
"""So many batches of one size, or for so long: sizes do not vary."""
_BATCHES, _ROUNDS = 6, 4
"""That come first: of the loader, and steps of the optimizer, whose state is born in the first of them."""
_AHEAD = 2
"""That a program may fetch before it uses the first (accelerate, Lightning)."""
_MOST_ORDERED = 5_000
"""Batches whose extents are kept in their order."""
_TIMES = 2
"""Each is given so often, or to all micro-batches of an iteration where their number is known: where gradients
accumulate, one of two finds them there already."""
_OF_MANY = 3
"""Batches that are chosen of many sizes: of the median size, of the 99 %, and the largest."""


def rounds_to_give(micro_batches: int, sizes: int) -> int:
    """After how many iterations of so many micro-batches all batches were given that are chosen of so many sizes, and
    others once more."""
    usual = max(_ROUNDS, math.ceil(_BATCHES / micro_batches))
    chosen = sizes if sizes <= FEW else _OF_MANY
    return usual + math.ceil(chosen * max(_TIMES, micro_batches) / micro_batches) + 1


@dataclass(slots=True)
class _Chosen:
    """A batch to give, as bytes: on the host it is not a tensor before its turn."""

    about: TriedBatch
    content: bytes


@dataclass(slots=True, eq=False)
class _Plan:
    """Of one loader; it goes on with the next epoch's iterator."""

    drawn: DrawnBatches
    times: int
    """How often each of the chosen ones is given."""
    chosen: list[_Chosen]
    ways: Sequence[tuple[str, int]]
    """The extents that vary."""
    extents: list[tuple[int, ...]] = field(default_factory=list)
    """Of the batches that were given."""
    given: int = 0
    """Of the program's own batches and of those in their place."""
    round: int = -2
    """The optimizer's steps when a batch was given last."""
    turn: int = 0
    """How many of the chosen ones were given, each so many times."""
    last_given: int = -2
    """Which of the given ones was chosen last."""
    used: int = 0
    """How many of them were seen in a forward."""

    @property
    def usual(self) -> int:
        """How many come first: of a short epoch as many as leave room for the chosen ones."""
        room = self.drawn.epoch - self.times * len(self.chosen)
        return min(_BATCHES, max(room, 0)) if self.drawn.epoch else _BATCHES

    @property
    def left(self) -> int:
        return self.times * len(self.chosen) - self.turn


class LookAhead:
    """The data loaders of one program. `batches`: how many are drawn of each, 0: none, None: as many as an epoch has
    and `SECONDS` allow. `rounds` tells how often the optimizers have stepped, and `trains` whether they will."""

    def __init__(
        self,
        batches: int | None,
        rounds: Callable[[], int],
        trains: Callable[[], bool],
        assumptions: Assumptions,
        micro_batches: int = 0,
    ) -> None:
        """`micro_batches`: of an iteration, where that is known."""
        self._batches, self._rounds, self._trains, self._assumptions = batches, rounds, trains, assumptions
        self._times = max(micro_batches, _TIMES)
        self._left_seconds = SECONDS
        self._plans: dict[tuple[Any, ...], _Plan | None] = {}
        """By how much data a loader has and the lines that led to its loop; None where its sizes do not vary."""
        self._of_loaders: WeakKeyDictionary[Any, _Plan | None] = WeakKeyDictionary()
        self._of_iterators: WeakKeyDictionary[Any, _Plan] = WeakKeyDictionary()

    @contextmanager
    def watch(self) -> Iterator[None]:
        wrapped: dict[str, upstream.Wrapper] = {
            "torch.utils.data:DataLoader._get_iterator": self._looking,
            "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": self._giving,
        }
        if self._batches == 0:
            yield
        else:
            with upstream.patch_targets("program batches", wrapped=wrapped):
                yield

    @property
    def waits(self) -> bool:
        """Whether a loader that is in use has batches to give that the program was not given yet, or may hold one that
        it has not used: some fetch a batch ahead."""
        return any(
            self._rounds() - plan.round <= 1
            and (plan.left or (self._trains() and plan.given - plan.last_given < _AHEAD))
            for plan in filter(None, self._plans.values())
        )

    def drawn(self) -> tuple[DrawnBatches, ...]:
        """Of each loader whose sizes vary, with the batches that were given."""
        plans = dict.fromkeys(plan for plan in self._plans.values() if plan is not None)
        return tuple(
            replace(plan.drawn, tried=tuple(each.about for each in plan.chosen), given=tuple(plan.extents))
            for plan in plans
        )

    def forward_ended(self, shapes: Shapes, iteration: int, *, evaluates: bool) -> None:
        """A forward has had inputs of these shapes: perhaps a batch that was given is one of them."""
        for plan in filter(None, self._plans.values()):
            for number, chosen in enumerate(plan.chosen[: -(-plan.turn // plan.times)]):
                if number >= plan.used and chosen.about.shape in shapes.values():
                    chosen.about = replace(chosen.about, iteration=iteration, evaluates=evaluates)
                    plan.used = number + (plan.left % plan.times == 0)

    def _looking(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def get_iterator(loader: Any) -> Any:
            plan = self._find_plan(loader, real)
            iterator = real(loader)
            if plan is not None:
                self._of_iterators[iterator] = plan
            return iterator

        return get_iterator

    def _find_plan(self, loader: Any, make_iterator: Callable[..., Any]) -> _Plan | None:
        """The one of this loader, or of the one before it in the same loop over as much data: some programs make a
        loader an epoch, and others go through all of theirs in one loop."""
        lines = ((frame.f_code, line) for frame, line in traceback.walk_stack(sys._getframe(1)))
        loop = (_length(loader.dataset), *lines)
        if loop not in self._plans:
            if loader not in self._of_loaders:
                self._of_loaders[loader] = self._look(loader, make_iterator)
            self._plans[loop] = self._of_loaders[loader]
        return self._plans[loop]

    def _giving(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def following(iterator: Any) -> Any:
            batch = real(iterator)
            plan = self._of_iterators.get(iterator)
            if plan is None:
                return batch
            batch = self._choose(plan, batch, iterator)
            if len(plan.extents) < _MOST_ORDERED:
                plan.extents.append(read_extents(read_shapes(batch), plan.ways))
            return batch

        return following

    def _choose(self, plan: _Plan, batch: Any, iterator: Any) -> Any:
        """The batch, or one that is given in its place."""
        plan.given, plan.round = plan.given + 1, self._rounds()
        if not plan.left or plan.given <= plan.usual or (self._trains() and plan.round < min(plan.usual, _ROUNDS)):
            return batch
        chosen = plan.chosen[plan.turn // plan.times]
        plan.turn, plan.last_given = plan.turn + 1, plan.given
        chosen.about = replace(chosen.about, iteration=plan.round + 1)
        batch = pickle.loads(chosen.content)
        return pin_memory(batch, iterator._pin_memory_device) if iterator._pin_memory else batch

    def _look(self, loader: Any, make_iterator: Callable[..., Any]) -> _Plan | None:
        began = time.perf_counter()
        trains = torch.is_grad_enabled()
        share = self._left_seconds if trains else self._left_seconds * _EVALUATING
        seconds = share if self._batches is None else float("inf")
        try:
            content = _call_in_child(lambda: self._draw(make_iterator(loader), seconds, loader), seconds)
        except OSError as error:  # no more processes are allowed
            content = pickle.dumps(str(error))
        if self._batches is None:
            self._left_seconds = max(self._left_seconds - (time.perf_counter() - began), 0.0)
        found = pickle.loads(content) if content else "its process did not come to its end in time"
        if isinstance(found, str):
            data = type(loader.dataset).__name__
            self._assumptions.add(About.HOST, f"batches of a DataLoader of {data} could not be drawn ahead: {found}")
        return found if isinstance(found, _Plan) else None

    def _draw(self, iterator: Iterator[Any], seconds: float, loader: Any) -> _Plan | str | None:
        batches, epoch = LargestBatches(), _length(loader)
        is_uniform, began = True, _seconds_at_work()
        while len(batches.seen) != self._batches:
            try:
                batch = next(iterator)
            except StopIteration:
                epoch = len(batches.seen)
                break
            batches.take(read_shapes(batch), batch)
            is_uniform = is_uniform and batches.seen[-1] == batches.seen[0]
            if _seconds_at_work() - began > (min(seconds, _UNIFORM_SECONDS) if is_uniform else seconds):
                break
            if is_uniform and len(batches.seen) >= _UNIFORM and self._batches is None:
                break
        size = varying([[shapes] for shapes in batches.seen], _find_place(loader))
        if size is None:
            return None
        chosen = []
        for about, batch in batches.chosen(size):
            with suppress(Exception):  # a batch that no process can hand to another
                chosen.append(_Chosen(about, _written(batch)))
        ways = varying_extents(batches.seen)
        drawn = DrawnBatches(
            size=size,
            drawn=len(batches.seen),
            epoch=epoch,
            trains=torch.is_grad_enabled(),
            order=tuple(read_extents(each, ways) for each in batches.seen[:_MOST_ORDERED]),
        )
        return _Plan(drawn, self._times, chosen, ways)


def _length(items: Any) -> int:
    """0 where it is not known: a sampler without a length."""
    with suppress(TypeError, NotImplementedError):
        return len(items)
    return 0


def _seconds_at_work() -> float:
    """By the clock, without those in which this process waited for a processor, where the kernel counts them."""
    try:
        waited = int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        waited = 0
    return time.perf_counter() - waited / 1e9


def _call_in_child(call: Callable[[], object], seconds: float) -> bytes:
    """What it returns, pickled, or what it raises as a sentence; empty if it did not come to its end in time."""
    forked = fork_off(seconds)
    if isinstance(forked, bytes):
        return forked
    result: object = None
    try:
        result = call()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"[:200]
    finally:
        forked(result)


class _Pickler(pickle.Pickler):
    """Tensors as their bytes: torch's own way is to save a file, which would be counted as a checkpoint."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _make_tensor, (content, value.dtype, tuple(value.shape))


def _make_tensor(content: bytes, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    if content:
        tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return tensor


def _written(batch: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(batch)
    return file.getvalue()


def _find_place(loader: Any) -> str:
    """Where its batches are made: by the program's own function that puts examples together, or else by its data."""
    collate, data = loader.collate_fn, type(loader.dataset)
    makers = (collate, *getattr(collate, "__dict__", {}).values(), data)  # a library's may call the program's
    for maker in makers:
        for function in (maker, *(getattr(maker, name, None) for name in ("__call__", "__getitem__", "__iter__"))):
            code = getattr(function, "__code__", None)
            if code is not None and is_programs(code):
                return f"{short_path(code.co_filename)}:{code.co_firstlineno}"
    return ""
