"""gloo whose collectives return only when its thread has let go of what it was given.

gloo's thread (torch 2.13, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, `runLoop`) says that a collective is done
and drops its tensors after that. Where the step is faster, the thread is the last to hold them: the profiler, which
does not follow that thread once the work is done, then misses their end, in one run and not in the next. Here a group
has one thread, and each collective is followed by the sum of one number: the thread comes to it when it has dropped
what came before. (Not by a barrier: gloo's remembers weakly what came before it, which keeps the tensors.) Sends and
receives have no thread of their own and stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from planner.training.absent_peers import WithoutBackends

BACKEND = "settled_gloo"
_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced", "gather", "scatter",
    "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced", "all_gather_single_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single",
)  # fmt: skip
_AS_THEY_ARE = ("send", "recv", "recv_anysource", "barrier", "_get_backend")


class SettledGloo(WithoutBackends):
    """A process group of torch's own gloo, and the sum of one number after each collective."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        options = dist.ProcessGroupGloo._Options()
        options._timeout, options._threads = timeout, 1
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        gloo = dist.ProcessGroup.BackendType.GLOO
        self._inner = dist.ProcessGroup(store, rank, size)
        self._inner._set_default_backend(gloo)
        self._inner._register_backend(torch.device("cpu"), gloo, dist.ProcessGroupGloo(store, rank, size, options))
        self._number = torch.zeros(1)

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND


def _settled(name: str) -> Callable[..., Any]:
    def collective(self: SettledGloo, outputs: Any, *arguments: Any, **named: Any) -> Any:
        work = getattr(self._inner, name)(outputs, *arguments, **named)
        work.wait()
        self._inner.allreduce([self._number]).wait()
        del work
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(outputs)
        return _create_work_from_future(future)

    return collective


def _as_it_is(name: str) -> Callable[..., Any]:
    def call(self: SettledGloo, *arguments: Any, **named: Any) -> Any:
        return getattr(self._inner, name)(*arguments, **named)

    return call


for _name in _COLLECTIVES:
    setattr(SettledGloo, _name, _settled(_name))
for _name in _AS_THEY_ARE:
    setattr(SettledGloo, _name, _as_it_is(_name))


def meet(meeting: str, rank: int, world_size: int) -> None:
    """Joins the world that meets at this file."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # from torch 2.15 on its flight recorder asks C++ for this group's name
    dist.Backend.register_backend(BACKEND, SettledGloo, devices=["cpu"])
    dist.init_process_group(BACKEND, init_method=f"file://{meeting}", rank=rank, world_size=world_size)
