"""The world of a program: every process group that it makes, of whatever backend, has absent peers.

`init_process_group`, `new_group` and device meshes are torch's own. What a program would have learned from a peer (an
object that another rank sends, a key that it sets) is named: as an assumption where the program can go on without it,
as an error where it waits.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from planner import upstream
from planner.running.assumptions import About, Assumptions
from planner.running.broadcast_numbers import BroadcastNumbers
from planner.running.unwaited_collectives import (
    STILL_KEPT,
    Clock,
    Shelves,
    device_tensors,
    in_one_piece,
    is_asynchronous,
    keeps_tensors,
)
from planner.training import absent_checkpoint_peers, absent_peers
from planner.upstream import versions

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

    def note_message(self) -> None:
        """A message to or from one rank."""
        if not self.talkers:
            self.talkers = tuple(sorted(dist.get_process_group_ranks(self)))

    @property
    def _device_types(self) -> list[torch.device]:
        """Of the backends that the program asked for: async_save refuses a world that has none for the host."""
        said = distributed_c10d._world.pg_backend_config.get(self, "")
        for_device_alone = "cuda:" in said and "cpu:" not in said
        return [torch.device(each) for each in (("cuda",) if for_device_alone else ("cpu", "cuda"))]

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

    def note(self, tensors: Any) -> None:
        """What a collective fills: a tensor, or lists of them."""
        while isinstance(tensors, list | tuple) and tensors:
            tensors = tensors[0]
        if isinstance(tensors, Tensor) and tensors.is_cuda:
            self.carried = True


def _noting(name: str) -> Callable[..., Any]:
    inherited = getattr(absent_peers.AbsentPeers, name)

    def collective(self: ProgramPeers, tensors: Any, *arguments: Any, **named: Any) -> Any:
        self.note(tensors)
        if name in _MESSAGES:
            self.note_message()
        self.shelves.give_up()
        given = (*arguments, *named.values())
        pieces = in_one_piece(name, tensors, given[0] if given else ())
        if name == "broadcast":
            self.numbers.pass_on(self, tensors, given[0].rootRank if given else 0)
        done = inherited(self, tensors, *arguments, **named)
        touched = [*device_tensors(tensors, *given), *pieces]
        is_waited_for = bool(touched) and is_asynchronous(given) and versions.since(2, 7)
        # Before 2.7 C++ lets go of the Python part of such work, and would wait forever (PyProcessGroup.hpp).
        return self.shelves.keep(tensors, touched) if is_waited_for else done

    return collective


for _name in absent_peers.COLLECTIVES:
    # Dynamo looks at every Python that runs inside a compiled call, and of a process group it knows nothing.
    setattr(ProgramPeers, _name, torch.compiler.disable(_noting(_name)))


class NcclOptions:
    """`ProcessGroupNCCL.Options`: takes whatever a program sets, and has no effect on memory that is modelled."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        self.config: Any = _Settings()


class _Settings:
    """Whatever is set on it."""


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


class Nccl:
    """Stands for `ProcessGroupNCCL`, which a build without CUDA lacks."""

    Options = NcclOptions


class World:
    """The groups that a program made, and what of them its report has to say."""

    def __init__(
        self, assumptions: Assumptions, clock: Clock, numbers: BroadcastNumbers, torch_version: str = ""
    ) -> None:
        self._assumptions, self._clock, self._keeps = assumptions, clock, keeps_tensors(torch_version)
        self._numbers = numbers
        self._groups: list[ProgramPeers] = []

    def communicators(self) -> tuple[int, ...]:
        """Sizes of the groups over which tensors of the device travelled."""
        return tuple(sorted((each.size() for each in self._groups if each.carried), reverse=True))

    def talkers(self) -> tuple[tuple[int, ...], ...]:
        """The groups over which single messages travelled, by their ranks in the world."""
        return tuple(sorted({each.talkers for each in self._groups if each.talkers}))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, groups of any backend are absent peers."""
        _register(self._make)
        replaced: dict[str, Any] = {
            f"{_C10D}:rendezvous": _meet,
            f"{_C10D}:_NCCL_AVAILABLE": True,
            f"{_C10D}:_get_object_coll_device": lambda _group=None: "cpu",
            f"{_C10D}:ProcessGroupNCCL": Nccl,
            "torch.distributed:ProcessGroupNCCL": Nccl,
            "torch.distributed:TCPStore": lambda *_arguments, **_named: OwnStore(),
            "torch.nn.parallel.distributed:DistributedDataParallel._check_comm_hook": lambda *_arguments: None,
            f"{_C10D}:split_group": _split,
            "torch.distributed:split_group": _split,
        }
        wrapped = {
            f"{_C10D}:_new_process_group_helper": self._with_absent_peers,
            f"{_C10D}:broadcast_object_list": self._telling_of_objects,
            "torch.distributed:broadcast_object_list": self._telling_of_objects,
            f"{_C10D}:scatter_object_list": self._telling_of_objects,
            "torch.distributed:scatter_object_list": self._telling_of_objects,
            f"{_C10D}:recv_object_list": self._telling_of_objects,
            "torch.distributed:recv_object_list": self._telling_of_objects,
            f"{_C10D}:recv": _from_somebody,
            "torch.distributed:recv": _from_somebody,
        }
        with (
            upstream.patch_targets("program peers", replaced=replaced, wrapped=wrapped),
            absent_checkpoint_peers.alone(partial(self._assumptions.add, About.PEERS)),
        ):
            yield

    def _make(self, _store: Any, rank: int, size: int, _timeout: Any) -> ProgramPeers:
        shelves = Shelves(self._clock, self._say_that_it_keeps, keeps=self._keeps)
        made = ProgramPeers(rank, size, shelves, self._numbers)
        self._groups.append(made)
        return made

    def _with_absent_peers(self, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def helper(*arguments: Any, **named: Any) -> Any:
            call = signature.bind(*arguments, **named)
            said = call.arguments["backend"]
            call.arguments["backend"] = distributed_c10d.Backend(_BACKEND)
            call.arguments["backend_options"] = None
            call.arguments["device_id"] = None
            group, store = real(*call.args, **call.kwargs)
            if isinstance(group, dist.ProcessGroup):
                world = distributed_c10d._world
                world.pg_map[group] = (said, store)
                world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(said))
                self._say_once(group)
            return group, store

        return helper

    def _say_once(self, group: dist.ProcessGroup) -> None:
        if group.size() > 1:
            self._assumptions.add(
                About.PEERS,
                f"a group of {group.size()} ranks, the others absent: what they would send is what this rank has",
            )

    def _say_that_it_keeps(self) -> None:
        self._assumptions.add(About.PEERS, STILL_KEPT)

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
    ranks = [dist.get_global_rank(parent, each) for each in mine]
    return dist.new_group(
        ranks,
        timeout=timeout,
        backend=backend,
        pg_options=pg_options,
        use_local_synchronization=True,
        group_desc=group_desc,
    )


def _meet(url: str, rank: int = -1, world_size: int = -1, **_named: Any) -> Iterator[tuple[OwnStore, int, int]]:
    """As torch's rendezvous, without meeting anybody."""
    rank = int(os.environ["RANK"]) if rank < 0 else rank
    world_size = int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} in a world of {world_size} ({url})")
    yield OwnStore(), rank, world_size


def _register(make: Callable[..., ProgramPeers]) -> None:
    dist.Backend.register_backend(_BACKEND, make, devices=["cpu", "cuda"])


def is_waiting(error: BaseException) -> bool:
    """Whether a program was waiting for a peer's key."""
    return isinstance(error, torch.distributed.DistStoreError)
