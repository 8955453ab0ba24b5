"""DistributedDataParallel with every argument of `parallel.dp_replicate`.

The reducer, its buckets and their rebuild are PyTorch's own C++ (torch/csrc/distributed/c10d/reducer.cpp). Gradients
are reduced over a process group that the caller has initialised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

from planner.events import Category
from planner.job import schema
from planner.training.observers import Observer
from planner.upstream import torch_releases

_POWER_SGD_STARTS = 2
"""Iterations before PowerSGD compresses, the fewest that it takes (powerSGD_hook.py). A program waits for a thousand;
what it will hold from then on, errors as large as the gradients among it, has to be in a plan of a few iterations."""


def fewest_iterations(spec: schema.DpReplicate) -> int:
    """How many iterations show all that the job will hold: the one after the first that has everything."""
    return _POWER_SGD_STARTS + 2 if spec.degree > 1 and spec.comm_hook == "power_sgd" else 0


class ObservedDdp(DistributedDataParallel):
    """DistributedDataParallel that tells an observer which storages are buckets and which serve communication."""

    _observer: Observer
    _sync: ExitStack

    def __init__(
        self,
        module: nn.Module,
        spec: schema.DpReplicate,
        observer: Observer,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """`process_group`: the replicas, by default the whole world."""
        if not spec.init_sync:
            torch_releases.require("init_sync of DistributedDataParallel", place="parallel.dp_replicate.init_sync")
        initial: dict[str, Any] = {} if spec.init_sync else {"init_sync": False}  # torch 2.6 does not know it
        # Set before nn.Module is initialised: plain attributes that the constructor below already needs.
        object.__setattr__(self, "_observer", observer)
        object.__setattr__(self, "_sync", ExitStack())
        with warnings.catch_warnings(), self._sync:
            # torch 2.13 renames broadcast_buffers; the new name means something else for the initial sync.
            warnings.filterwarnings("ignore", message=".*broadcast_buffers.*", category=FutureWarning)
            super().__init__(
                module,
                process_group=process_group,
                broadcast_buffers=spec.broadcast_buffers,
                **initial,
                bucket_cap_mb=spec.bucket_cap_mb,
                find_unused_parameters=spec.find_unused_parameters,
                gradient_as_bucket_view=spec.gradient_as_bucket_view,
                static_graph=spec.static_graph,
            )
        self._compression: power_sgd.PowerSGDState | None = None
        self._compress(spec.comm_hook)
        self.reducer: Any = ObservedReducer(self.reducer, observer)

    def account(self) -> dict[str, Any]:
        """The reducer's own account of itself: bucket sizes in bytes, rebuilt or not, the hook's name."""
        return dict(self._get_ddp_logging_data())  # type: ignore[no-untyped-call]

    def communication_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What the communication hook keeps from one iteration to the next (PowerSGD: factors and errors)."""
        return iter(()) if self._compression is None else compression_tensors(self._compression)

    def _build_params_for_reducer(self) -> Any:
        built = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        # From here to the reducer the constructor verifies and broadcasts parameters and buffers.
        self._sync.enter_context(self._observer.region(Category.COMMUNICATION, "init_sync"))
        return built

    def _ddp_init_helper(self, *arguments: Any, **keywords: Any) -> Any:
        self._sync.close()
        with self._observer.region(Category.BUCKET, "ddp"):
            return super()._ddp_init_helper(*arguments, **keywords)  # type: ignore[no-untyped-call]

    def _sync_buffers(self) -> None:
        with self._observer.region(Category.COMMUNICATION, "buffers"):
            super()._sync_buffers()  # type: ignore[no-untyped-call]

    def _compress(self, name: str) -> None:
        if name == "power_sgd":
            self._compression = power_sgd.PowerSGDState(process_group=None, start_powerSGD_iter=_POWER_SGD_STARTS)
            self._register(self._compression, power_sgd.powerSGD_hook)
        elif name in ("fp16_compress", "bf16_compress"):
            self._register(None, getattr(default_hooks, f"{name}_hook"))

    def _register(self, state: Any, hook: Callable[..., Any]) -> None:
        self.register_comm_hook(state, observe_hook(hook, self._observer))


def leave_out_clock(account: Mapping[str, Any]) -> dict[str, Any]:
    """A reducer's account of itself as it is at any time: a trace of the same job is the same."""
    return {
        name: value
        for name, value in account.items()
        if isinstance(value, str | int | float | bool) and "_time" not in name
    }


def compression_tensors(state: power_sgd.PowerSGDState) -> Iterator[tuple[str, torch.Tensor]]:
    """What PowerSGD keeps from one iteration to the next: factors and errors, by name."""
    for name, tensors in (("p", state.p_memory_dict), ("q", state.q_memory_dict), ("error", state.error_dict)):
        for bucket, tensor in tensors.items():
            yield f"power_sgd.{name}.{bucket}", tensor


class ObservedReducer:
    """The reducer, with a word to the observer while it rebuilds its buckets."""

    def __init__(self, reducer: Any, observer: Observer) -> None:
        self._reducer, self._observer = reducer, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> Any:
        with self._observer.region(Category.BUCKET, "ddp"):
            return self._reducer._rebuild_buckets()


def observe_hook(hook: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """The hook, whose tensors the observer hears to serve communication."""

    def observed_hook(state: Any, bucket: Any) -> Any:
        with observer.region(Category.COMMUNICATION, hook.__name__):
            return hook(state, bucket)

    # DDP wants no annotations or its own, and logs the qualified name.
    observed_hook.__annotations__ = {}
    observed_hook.__qualname__ = hook.__qualname__
    return observed_hook
