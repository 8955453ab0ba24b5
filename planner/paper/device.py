"""Opens a paper GPU: inside `gpu(target)` torch's own CUDA code runs, and what it asks for is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from planner import cuda_on_paper, upstream
from planner.paper import library, sized_by_values, values
from planner.paper.recorder import Recorder
from planner.paper.work_records import Holding
from planner.upstream import checking

_GROUPS_KEEP_SINCE = (2, 8)
"""torch whose groups of NCCL keep tensors (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp: TensorShelf)."""


@dataclass(frozen=True, slots=True)
class Paper:
    """A GPU on paper and the recorder that writes down what it is asked for."""

    device: torch.device
    recorder: Recorder
    other_kernels: str = ""
    """A sentence, where the installed torch has none for the GPU."""

    def unknown_workspaces(self) -> tuple[str, ...]:
        """The libraries and kernels of this trace whose workspaces are not counted, sorted."""
        names: bytes = library.load().paper_unknown_workspaces()
        return tuple(names.decode().splitlines())


@contextmanager
def gpu(target: str, *, torch_version: str = "") -> Iterator[Paper]:
    """A paper GPU of the architecture `target` (`sm_90`): that of this process (`planner.cuda_on_paper.take_gpu`), or
    one with room for everything if it has none yet.

    `torch_version` is the one that the job runs with (empty: the installed one).

    Raises TraceError for an unknown architecture or another than that of this process, if torch was imported before
    planner.paper, or if it is not the torch that planner knows.
    """
    cuda_on_paper.take_any_gpu(target)
    checking.enforce()
    prepare()
    library.load().paper_begin()
    torch._C._cuda_clearCublasWorkspaces()  # of what this process traced before
    recorder = Recorder(holding=_holding_of_nccl(torch_version or torch.__version__))
    recorder.start()
    queries = {"torch.cuda.streams:Event.query": lambda _event: not recorder.waits}
    with upstream.patch_targets("events", replaced=queries):
        try:
            yield Paper(torch.device("cuda", 0), recorder, cuda_on_paper.describe_other_kernels(target))
        finally:
            recorder.stop()
            # Autograd's device thread frees its last graph under the GIL: now, and not while Python shuts down.
            recorder.settle()


def _holding_of_nccl(torch_version: str) -> Holding:
    release = tuple(map(int, torch_version.split(".")[:2]))
    return Holding.KEEPS if release >= _GROUPS_KEEP_SINCE else Holding.USES


@cache
def prepare() -> torch.library.Library:
    """Registers with torch what every trace needs, once for the process and before a GPU is known: children that are
    forked have it. What is returned has to stay."""
    library.load().paper_install()
    sized_by_values.install()
    own = torch.library.Library("paper", "FRAGMENT")
    own.impl("read_value", values.read, "CUDA")
    own.impl("read_to_host", values.copy_to_host, "CUDA")
    own.impl("follow", sized_by_values.follow, "CUDA")
    return own
