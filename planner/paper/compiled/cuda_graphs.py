"""Private pools of Inductor's trees of CUDA graphs (torch 2.13, torch/_inductor/cudagraph_trees.py), whose states only
torch's own allocator keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from planner import upstream
from planner.errors import TraceError


@contextmanager
def on_paper() -> Iterator[None]:
    """Inside, a private pool can be set back as long as nothing in it is alive."""
    states = {
        "torch._C:_cuda_getCheckpointState": lambda _device, _pool: object(),
        "torch._C:_cuda_setCheckpointPoolState": _go_back,
    }
    with upstream.patch_targets("states of private pools", replaced=states):
        yield


def _go_back(_device: int, _state: object, _stale: Sequence[int], live: Sequence[int]) -> None:
    """Sets a private pool back to where it was when a graph had been captured, before another one follows it.

    Without any tensor that is alive all of it is free, then as now. Raises TraceError where there is one.
    """
    if not live:
        return
    raise TraceError(
        "a CUDA graph is captured after others were replayed whose results are alive",
        allowed="a step that runs the same compiled parts in the same order each time",
        remedy="compile without CUDA graphs (mode: default, or max-autotune-no-cudagraphs)",
        place="train.compile.mode",
    )
