"""The world of a program: every process group that it makes, of whatever backend, has absent peers."""

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
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.value_answers import BroadcastNumbers
from planner.training import absent_peers


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
    """A store that only this process writes to: waiting for a peer's key is an error after seconds, not after the
    half hour that the program allows."""

    def __init__(self) -> None:
        super().__init__()
        super().set_timeout(_PATIENCE)

    def set_timeout(self, timeout: timedelta) -> None:
        """Stays as it is."""


class ProgramPeers(absent_peers.AbsentPeers):
    """A group that remembers whether tensors of the device travelled over it: only then NCCL takes memory for it."""

    def __init__(self, rank: int, size: int, numbers: BroadcastNumbers) -> None:
        super().__init__(rank, size)
        self.numbers = numbers
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
        given = (*arguments, *named.values())
        pieces = _in_one_piece(name, tensors, given[0] if given else ())
        if name == "broadcast":
            self.numbers.pass_on(self, tensors, given[0].rootRank if given else 0)
        done = inherited(self, tensors, *arguments, **named)
        if self.issued is not None:
            self.issued.hold(pieces)
        return done

    return collective


for _name in absent_peers.COLLECTIVES:
    # Dynamo looks at every Python that runs inside a compiled call, and of a process group it knows nothing.
    setattr(ProgramPeers, _name, torch.compiler.disable(_noting(_name)))


class Backend:
    """What a program asks of the backend of a group of absent peers (torch.distributed's Backend)."""

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.options = dist.ProcessGroupNCCL.Options()
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

    def __init__(self, assumptions: Assumptions, numbers: BroadcastNumbers) -> None:
        self._assumptions, self._numbers = assumptions, numbers
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
        objects = ("broadcast_object_list", "scatter_object_list", "recv_object_list")
        replaced: dict[str, Any] = {
            f"{_C10D}:rendezvous": _meet,
            f"{_C10D}:_get_object_coll_device": lambda _group=None: "cpu",
            f"{_C10D}:_maybe_attach_flight_recorder": lambda *_arguments: None,
            "torch.distributed:TCPStore": lambda *_arguments, **_named: OwnStore(),
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
        group = ProgramPeers(rank, size, self._numbers)
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
    """A receive from any rank: the next one sends."""

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
