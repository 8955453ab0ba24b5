"""The world of a program: every process group that it makes, of whatever backend, has absent peers."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from planner import upstream
from planner.hardware.catalog import speed_of
from planner.paper import library
from planner.paper.work_records import tensors_in
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.value_answers import BroadcastNumbers
from planner.training import absent_peers
from planner.upstream import torch_releases

# Source: torch 2.8 to 2.13, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (TensorShelf). `wait` on the work gives
# them up. Where only its future is asked for, or nothing is, a thread looks ten times a second which collectives have
# ended, and the next one of the group gives up what it found. A host that never waits for the GPU is ahead of it, by
# up to the 1,024 launches that a stream takes: what one iteration has kept is still there when the next but one
# computes, and the one after that, if it is over before the thread has looked again. A host that compiles is not
# ahead: it takes seconds, and the GPU has ended by then.
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
    tensors: list[Tensor]
    iteration: int
    host_waits: int


class Shelves:
    """Of one process group."""

    def __init__(self, clock: Clock, says: Callable[[], None], *, keeps: bool) -> None:
        """`says` is called when the tensors of a collective stay longer than until the next one; without `keeps` none
        do."""
        self._clock, self._says, self._keeps = clock, says, keeps
        self._shelves: list[_Shelf] = []

    def give_up(self) -> None:
        """A collective is issued: what those before it have kept goes, if they are known to have ended."""
        iteration, waits, kept = self._clock.iterations(), self._clock.host_waits(), self._clock.kept_iterations()
        self._shelves = [
            shelf
            for shelf in self._shelves
            if shelf.tensors and iteration - shelf.iteration < kept and waits == shelf.host_waits
        ]
        if self._shelves:
            self._says()

    def keep(self, value: Any, tensors: list[Tensor], when_waited_for: Callable[[], None]) -> Work:
        """The work of a collective that was issued with these tensors; `value` is that of its future."""
        shelf = _Shelf(tensors, self._clock.iterations(), self._clock.host_waits())
        if self._keeps:
            self._shelves.append(shelf)
        return Work(value, shelf, when_waited_for)


class Work(dist.Work):
    """Work that is done, as far as anybody can tell."""

    def __init__(self, value: Any, shelf: _Shelf, when_waited_for: Callable[[], None]) -> None:
        super().__init__()
        self._shelf, self._when_waited_for = shelf, when_waited_for
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(value)

    def wait(self, *_timeout: Any, **_named: Any) -> bool:
        self.synchronize()
        return True

    def synchronize(self) -> None:
        self._when_waited_for()
        self._shelf.tensors.clear()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


def _in_one_piece(name: str, outputs: Any, inputs: Any) -> list[Tensor]:
    """What NCCL gathers into or scatters out of where a program gives lists of equal tensors: one tensor for each
    (newLikeFlat in ProcessGroupNCCL.cpp)."""
    lists = outputs if name == "allgather" else inputs if name == "reduce_scatter" else []
    return [
        torch.empty((len(parts), *parts[0].shape), dtype=parts[0].dtype, device=parts[0].device)
        for parts in lists
        if parts and parts[0].is_cuda and all(part.shape == parts[0].shape for part in parts)
    ]


_BACKEND = "absent_peers_of_a_program"
_PATIENCE = timedelta(seconds=5)
"""Nobody sets a key that this process does not set itself."""
_C10D = "torch.distributed.distributed_c10d"


_MESSAGES = ("send", "recv", "recv_anysource")
"""Collectives that are none: one rank sends to one other."""


class OwnStore(dist.HashStore):  # type: ignore[name-defined, misc]
    """A store that only this process writes to: whoever waits for a peer's key is told so after seconds, not after the
    half hour that the program allows."""

    def __init__(self) -> None:
        super().__init__()
        super().set_timeout(_PATIENCE)

    def set_timeout(self, timeout: timedelta) -> None:
        """Stays as it is."""


class ProgramPeers(absent_peers.AbsentPeers):
    """A group that remembers whether tensors of the device travelled over it: only then NCCL takes memory for it."""

    def __init__(self, rank: int, size: int, shelves: Shelves, numbers: BroadcastNumbers) -> None:
        super().__init__(rank, size)
        self.shelves, self.numbers = shelves, numbers
        self.carried = False
        self.talkers: tuple[int, ...] = ()
        """The ranks of the world in this group, once single messages have travelled over it."""

    @property
    def _device_types(self) -> list[torch.device]:
        """Of the backends that the program asked for: async_save refuses a world that has none for the host."""
        config = distributed_c10d._world.pg_backend_config.get(self, "")
        for_device_alone = "cuda:" in config and "cpu:" not in config
        return [torch.device(kind) for kind in (("cuda",) if for_device_alone else ("cpu", "cuda"))]

    def monitored_barrier(self, *_arguments: Any, **_named: Any) -> None:
        """Everybody is taken to have come."""

    def _start_coalescing(self, _device: Any) -> None:
        """Collectives complete one by one."""

    def _end_coalescing(self, _device: Any) -> Any:
        return absent_peers.finished_work([])

    def _get_backend(self, _device: Any) -> Any:
        return Backend(self)

    def _set_sequence_number_for_group(self) -> None:
        """Nobody compares them."""

    def _get_sequence_number_for_group(self) -> int:
        return 0


def _noting(name: str) -> Callable[..., Any]:
    inherited = getattr(absent_peers.AbsentPeers, name)

    def collective(self: ProgramPeers, tensors: Any, *arguments: Any, **named: Any) -> Any:
        filled = tensors
        while isinstance(filled, list | tuple) and filled:
            filled = filled[0]
        if isinstance(filled, Tensor) and filled.is_cuda:
            self.carried = True
        if name in _MESSAGES and not self.talkers:
            self.talkers = tuple(sorted(dist.get_process_group_ranks(self)))
        self.shelves.give_up()
        given = (*arguments, *named.values())
        pieces = _in_one_piece(name, tensors, given[0] if given else ())
        if name == "broadcast":
            self.numbers.pass_on(self, tensors, given[0].rootRank if given else 0)
        done = inherited(self, tensors, *arguments, **named)
        touched = [*tensors_in(tensors, *given), *pieces]
        is_asynchronous = any(getattr(option, "asyncOp", False) for option in given)
        # Before 2.7 C++ lets go of the Python part of such work, and would wait forever (PyProcessGroup.hpp).
        is_waited_for = bool(touched) and is_asynchronous and torch_releases.since(2, 7)
        return self.shelves.keep(tensors, touched, self.when_waited_for) if is_waited_for else done

    return collective


for _name in absent_peers.COLLECTIVES:
    # Dynamo looks at every Python that runs inside a compiled call, and of a process group it knows nothing.
    setattr(ProgramPeers, _name, torch.compiler.disable(_noting(_name)))


class NcclOptions:
    """`ProcessGroupNCCL.Options`: takes whatever a program sets, and has no effect on memory that is modelled."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        self.config = SimpleNamespace()


class Backend:
    """What a program asks of the backend of a group of absent peers (torch.distributed's Backend)."""

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.options = NcclOptions()
        self._group = group

    def name(self) -> str:
        known = distributed_c10d._world.pg_map
        return str(known[self._group][0]) if self._group in known else ""

    def rank(self) -> int:
        return self._group.rank()

    def size(self) -> int:
        return self._group.size()

    def _set_default_timeout(self, _timeout: timedelta) -> None:
        """Nothing is waited for."""

    def eager_connect_single_device(self, _device: Any) -> None:
        """There is nothing to connect."""


class World:
    """The groups that a program made, and what of them its report has to say."""

    def __init__(
        self, assumptions: Assumptions, clock: Clock, numbers: BroadcastNumbers, torch_version: str = ""
    ) -> None:
        """`torch_version`: that of the job (`2.6`; empty: the one that is installed)."""
        release = (torch_version or torch.__version__).split(".")[:2]
        self._keeps = tuple(map(int, release)) >= _SINCE
        self._assumptions, self._clock, self._numbers = assumptions, clock, numbers
        self._groups: list[ProgramPeers] = []

    def communicators(self) -> tuple[int, ...]:
        """Sizes of the groups over which tensors of the device travelled."""
        return tuple(sorted((group.size() for group in self._groups if group.carried), reverse=True))

    def talkers(self) -> tuple[tuple[int, ...], ...]:
        """The groups over which single messages travelled, by their ranks in the world."""
        return tuple(sorted({group.talkers for group in self._groups if group.talkers}))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, groups of any backend are absent peers."""
        dist.Backend.register_backend(_BACKEND, self._make, devices=["cpu", "cuda"])
        nccl = type("ProcessGroupNCCL", (), {"Options": NcclOptions})  # a build without CUDA lacks it
        objects = ("broadcast_object_list", "scatter_object_list", "recv_object_list")
        replaced: dict[str, Any] = {
            f"{_C10D}:rendezvous": _meet,
            f"{_C10D}:_NCCL_AVAILABLE": True,
            f"{_C10D}:_get_object_coll_device": lambda _group=None: "cpu",
            f"{_C10D}:_maybe_attach_flight_recorder": lambda *_arguments: None,
            f"{_C10D}:ProcessGroupNCCL": nccl,
            "torch.distributed:ProcessGroupNCCL": nccl,
            "torch.distributed:TCPStore": lambda *_arguments, **_named: OwnStore(),
            "torch.nn.parallel.distributed:DistributedDataParallel._check_comm_hook": lambda *_arguments: None,
            f"{_C10D}:split_group": _split,
            "torch.distributed:split_group": _split,
        }
        wrapped = {
            f"{_C10D}:_new_process_group_helper": self._with_absent_peers,
            **{f"{module}:{name}": self._telling_of_objects
               for module in (_C10D, "torch.distributed") for name in objects},
            f"{_C10D}:recv": _from_somebody,
            "torch.distributed:recv": _from_somebody,
        }  # fmt: skip
        with (
            upstream.patch_targets("program peers", replaced=replaced, wrapped=wrapped),
            absent_peers.alone(partial(self._assumptions.add, About.PEERS)),
        ):
            yield

    def _make(self, _store: Any, rank: int, size: int, _timeout: Any) -> ProgramPeers:
        says = partial(self._assumptions.add, About.PEERS, STILL_KEPT)
        group = ProgramPeers(rank, size, Shelves(self._clock, says, keeps=self._keeps), self._numbers)
        self._groups.append(group)
        return group

    def _with_absent_peers(self, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def helper(*arguments: Any, **named: Any) -> Any:
            call = signature.bind(*arguments, **named)
            backend = call.arguments["backend"]
            call.arguments["backend"] = distributed_c10d.Backend(_BACKEND)
            call.arguments["backend_options"] = None
            call.arguments["device_id"] = None
            group, store = real(*call.args, **call.kwargs)
            if isinstance(group, dist.ProcessGroup):
                world = distributed_c10d._world
                world.pg_map[group] = (backend, store)
                world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(backend))
                if group.size() > 1:
                    self._assumptions.add(
                        About.PEERS,
                        f"a group of {group.size()} ranks, the others absent: what they would send is what this rank"
                        " has",
                    )
            return group, store

        return helper

    def _telling_of_objects(self, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def collective(*arguments: Any, **named: Any) -> Any:
            call = signature.bind(*arguments, **named)
            call.apply_defaults()
            given = call.arguments
            group = given["group"]
            source = given["src"] if given["group_src"] is None else dist.get_global_rank(group, given["group_src"])
            source = 0 if source is None else source
            receives = real.__name__ == "recv_object_list"
            if source == dist.get_rank() and not receives:
                return real(*arguments, **named)
            self._assumptions.add(
                About.PEERS, f"{real.__name__}: what rank {source} would have sent is not known; nothing was received"
            )
            return source if receives else None

        return collective


def _from_somebody(real: Callable[..., Any]) -> Callable[..., Any]:
    """A receive from whoever sends: the next rank does."""

    def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> Any:
        if src is None and group_src is None:
            group_src = (dist.get_rank(group) + 1) % dist.get_world_size(group)
        return real(tensor, src=src, group=group, tag=tag, group_src=group_src)

    return recv


def _split(
    parent_pg: Any = None,
    split_ranks: Any = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: Any = None,
) -> Any:
    """`split_group`, whose groups are new ones: absent peers have no communicator to divide."""
    own = dist.get_rank(parent_pg)
    mine = next((ranks for ranks in split_ranks or [] if own in ranks), None)
    if mine is None:
        return None
    parent: Any = parent_pg or dist.group.WORLD
    ranks = [dist.get_global_rank(parent, rank) for rank in mine]
    return dist.new_group(
        ranks,
        timeout=timeout,
        backend=backend,
        pg_options=pg_options,
        use_local_synchronization=True,
        group_desc=group_desc,
    )


def _meet(url: str, rank: int = -1, world_size: int = -1, **_named: Any) -> Iterator[tuple[OwnStore, int, int]]:
    rank = int(os.environ["RANK"]) if rank < 0 else rank
    world_size = int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} in a world of {world_size} ({url})")
    yield OwnStore(), rank, world_size
