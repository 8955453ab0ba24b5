"""A world whose other ranks are not there: one process is one rank of any world, and every collective is done at once.

Reductions and broadcasts leave the tensors as they are; gathers and scatters are done by torch's fake process group,
which fills what it can from this rank's own tensors. torch's fake group alone is not enough: its work's future carries
no value, and the C++ reducer of DistributedDataParallel reads the reduced bucket out of that future (torch 2.13,
torch/csrc/distributed/c10d/FakeProcessGroup.hpp and reducer.cpp), so the reductions are done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BACKEND = "absent_peers"


class AbsentPeers(dist.ProcessGroup):
    """The process group of rank `rank` of a world of `size` in which nobody answers and nobody is waited for."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._fake = _fake_group(rank, size)
        self._named = ""

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def allreduce(self, tensors: Any, _options: Any = None) -> Any:
        return _done(tensors)

    def allreduce_coalesced(self, tensors: Any, _options: Any = None) -> Any:
        return _done(tensors)

    def broadcast(self, tensors: Any, _options: Any = None) -> Any:
        return _done(tensors)

    def barrier(self, _options: Any = None) -> Any:
        return _done([])
