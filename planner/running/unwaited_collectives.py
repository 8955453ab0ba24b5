"""Tensors of asynchronous collectives on whose work nobody waits: their process group keeps them for a while.

Source: torch 2.8 to 2.13, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (TensorShelf). `wait` on the work gives
them up. Where only its future is asked for, or nothing is, a thread looks ten times a second which collectives have
ended, and the next one of the group gives up what it found. A host that never waits for the GPU is ahead of it, by up
to the 1,024 launches that a stream takes: what one iteration has kept is still there when the next but one computes,
and the one after that, if it is over before the thread has looked again. A host that compiles is not ahead: it takes
seconds, and the GPU has ended by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planner.hardware.speeds import speed_of
from planner.paper import library

_SINCE = (2, 8)
"""torch whose headers have TensorShelf; up to 2.6 groups marked blocks as used on their stream instead. 2.7 was not
looked at."""
_ITERATIONS = 2
"""After so many a collective is known to have ended, by a host that has waited for nothing in between."""
_LOOKS_SECONDS = 0.1
"""Between two looks (kWatchdogThreadSleepMillis): one iteration more, of those that take less."""
_SHARE_OF_PEAK = 0.4
"""Of a data sheet's peak, which training reaches by its matrix products over a whole iteration."""

STILL_KEPT = (
    "NCCL's group keeps tensors of collectives whose work nobody waits for (async_op=True without wait()): the host is"
    " taken to be an iteration ahead of the GPU, so that those of two iterations are there, of three if one takes less"
    " than a tenth of a second (by its matrix products, at 40 % of what the GPU's data sheet says)"
)


@dataclass(slots=True)
class Clock:
    """What has passed in a program: whole iterations, how often the device has caught up with the host, which waited
    for it or compiled, and how long the device has computed, in seconds."""

    iterations: Callable[[], int] = lambda: 0
    host_waits: Callable[[], int] = lambda: 0
    seconds: Callable[[], float] = lambda: float("inf")
    _iteration: int = 0
    _began: float = 0.0
    _took: float = float("inf")

    def kept_iterations(self) -> int:
        """Of so many the tensors are there: of more if the last one was over before anybody has looked."""
        iteration = self.iterations()
        if iteration > self._iteration:
            now = self.seconds()
            self._took, self._iteration, self._began = now - self._began, iteration, now
        return _ITERATIONS + (self._took < _LOOKS_SECONDS)


def seconds_of_products(gpu: str) -> Callable[[], float]:
    """How long the matrix products of this process would have taken a GPU of the catalog so far; of another: nobody
    knows, which no iteration is shorter than."""
    speed = speed_of(gpu)
    if speed is None:
        return lambda: float("inf")
    a_second = _SHARE_OF_PEAK * speed.teraflops * 1e12
    operations = library.load().paper_gemm_operations
    return lambda: operations() / a_second


@dataclass(slots=True)
class _Shelf:
    """The tensors of one collective, and when it was issued."""

    tensors: list[Tensor]
    iteration: int
    host_waits: int


class Shelves:
    """Of one process group."""

    def __init__(self, clock: Clock, says: Callable[[], None] = lambda: None, *, keeps: bool = True) -> None:
        """`says` is called when the tensors of a collective stay longer than until the next one; without `keeps` none
        do."""
        self._clock, self._says, self._keeps = clock, says, keeps
        self._shelves: list[_Shelf] = []

    def give_up(self) -> None:
        """A collective is issued: what those before it have kept goes, if they are known to have ended."""
        iteration, waits, kept = self._clock.iterations(), self._clock.host_waits(), self._clock.kept_iterations()
        self._shelves = [
            each
            for each in self._shelves
            if each.tensors and iteration - each.iteration < kept and waits == each.host_waits
        ]
        if self._shelves:
            self._says()

    def keep(self, value: Any, tensors: list[Tensor]) -> Work:
        """The work of a collective that was issued with these tensors; `value` is that of its future."""
        shelf = _Shelf(tensors, self._clock.iterations(), self._clock.host_waits())
        if self._keeps:
            self._shelves.append(shelf)
        return Work(value, shelf)


class Work(dist.Work):
    """Work that is done, as far as anybody can tell."""

    def __init__(self, value: Any, shelf: _Shelf) -> None:
        super().__init__()
        self._shelf = shelf
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(value)

    def wait(self, *_timeout: Any, **_named: Any) -> bool:
        self._shelf.tensors.clear()
        return True

    def synchronize(self) -> None:
        self._shelf.tensors.clear()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


def keeps_tensors(torch_version: str) -> bool:
    """Whether groups of this torch (`2.6`; empty: the one that is installed) keep them."""
    version = torch_version or torch.__version__
    return tuple(int(each) for each in version.split(".")[:2]) >= _SINCE


def is_asynchronous(arguments: tuple[Any, ...]) -> bool:
    """Whether a collective's options, among its arguments, ask for work to wait on."""
    return any(getattr(each, "asyncOp", False) for each in arguments)


def device_tensors(*given: Any) -> Iterator[Tensor]:
    """All on a GPU, in lists of lists too."""
    for each in given:
        if isinstance(each, Tensor):
            if each.is_cuda:
                yield each
        elif isinstance(each, list | tuple):
            yield from device_tensors(*each)


def in_one_piece(name: str, outputs: Any, inputs: Any) -> list[Tensor]:
    """What NCCL gathers into or scatters out of where a program gives lists of equal tensors: one tensor for each
    (newLikeFlat in ProcessGroupNCCL.cpp)."""
    lists = outputs if name == "allgather" else inputs if name == "reduce_scatter" else []
    return [
        torch.empty((len(parts), *parts[0].shape), dtype=parts[0].dtype, device=parts[0].device)
        for parts in lists
        if parts and parts[0].is_cuda and all(each.shape == parts[0].shape for each in parts)
    ]
