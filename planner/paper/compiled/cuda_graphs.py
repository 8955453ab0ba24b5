"""CUDA graphs on the paper GPU, for Inductor's own trees of them (torch 2.13, torch/_inductor/cudagraph_trees.py).

Nothing is captured and a replay is nothing. What is allocated while something is captured or warmed up lies in the
private pool of its graphs; what a replay writes to has its address and no block, as in the allocator of a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import torch

from planner import cuda_on_paper, upstream
from planner.errors import TraceError
from planner.paper import library

Handle = tuple[int, int]
"""As torch names a private pool: one that was asked for is (0, number), a graph's own (number, 0)."""

_handles = count(1)


class PaperGraph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: ARG002
        self._pool: Handle | None = None

    def capture_begin(self, pool: Handle | None = None, **_options: Any) -> None:
        """What is allocated on the current stream from now on lies in this pool, or in one of the graph's own."""
        self._pool = pool or self._pool or graph_pool_handle()
        library.load().paper_open_pool(self._pool[1], 1)

    def capture_end(self) -> None:
        library.load().paper_close_pool(self.pool()[1])

    def pool(self) -> Handle:
        """Raises RuntimeError before anything was captured."""
        if self._pool is None:
            raise RuntimeError("CUDAGraph.pool() before capture_begin()")
        return self._pool

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def instantiate(self) -> None: ...

    def register_generator_state(self, generator: torch.Generator) -> None: ...


@contextmanager
def on_paper() -> Iterator[None]:
    """Inside, `torch.cuda.CUDAGraph` and what Inductor's trees of graphs ask of a CUDA build are those of the paper
    GPU."""
    states = {
        "torch._C:_cuda_getCheckpointState": lambda _device, _pool: object(),
        "torch._C:_cuda_setCheckpointPoolState": _go_back,
    }
    with (
        upstream.patch_targets("states of private pools", replaced=states),
        nullcontext() if cuda_on_paper.is_on() else upstream.patch_targets("cuda graphs", replaced=_modelled()),
    ):
        yield


def _modelled() -> dict[str, Any]:
    return {
        "torch.cuda:CUDAGraph": PaperGraph,
        "torch.cuda:graph": torch.cuda.graphs.graph,  # torch's own, also where a program's is refused
        "torch.cuda:graph_pool_handle": graph_pool_handle,
        **{f"torch._C:{name}": answer for name, answer in _build_answers().items()},
    }


def graph_pool_handle() -> Handle:
    """A private pool that has not been asked for before."""
    return (0, next(_handles))


def _build_answers() -> dict[str, Any]:
    """What `torch._C` of a CUDA build has (torch 2.13, torch/csrc/cuda/Module.cpp)."""
    native = library.load()
    return {
        "_cuda_beginAllocateCurrentThreadToPool": lambda _device, pool: native.paper_open_pool(pool[1], 0),
        "_cuda_endAllocateToPool": lambda _device, pool: native.paper_close_pool(pool[1]),
        # As both are called up to torch 2.7, where a warmed-up graph's pool is that of its stream.
        "_cuda_beginAllocateCurrentStreamToPool": lambda _device, pool: native.paper_open_pool(pool[1], 1),
        "_cuda_endAllocateCurrentStreamToPool": lambda _device, pool: native.paper_close_pool(pool[1]),
        "_cuda_releasePool": lambda _device, _pool: None,
        # Dynamo keeps these in a table by what they are, and functions of ctypes have no hash.
        "_cuda_clearCublasWorkspaces": lambda: native.paper_clear_workspaces(),
        "_cuda_get_conv_benchmark_empty_cache": lambda: True,
        "_cudnn_set_conv_benchmark_empty_cache": lambda _empties: None,
        "_host_emptyCache": lambda: None,
        "_tensors_data_ptrs_at_indices_equal": lambda tensors, addresses, indices: all(
            tensors[index].data_ptr() == addresses[index] for index in indices
        ),
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": _tensor_of,
        "_has_Standard_Deleter": lambda _storage: True,
        "_free_And_Remove_DeleterFn": lambda storage: native.paper_free_memory_of(ctypes.c_void_p(storage)),
        "_set_storage_access_error_msg": lambda tensor, why: torch.ops.paper.forbid(tensor, why),
        "_set_storage_data_ptr_access_error_msg": lambda storage, why: native.paper_forbid_storage(
            ctypes.c_void_p(storage), why.encode()
        ),
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_raw_delete": lambda _address: None,
    }


def _tensor_of(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor of this storage, which need not be in use."""
    empty = torch.empty(0, dtype=metadata["dtype"], device=metadata["device"])
    return empty.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])


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
