"""Skips what a traced step does on the host with offloaded tensors, as no device sees it, and writes it down."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from planner import upstream
from planner.events import Category, Mark, Phase
from planner.host_events import BatchTaken, HostCategory, HostEvent
from planner.paper.native_records import local_part
from planner.tracing.host_ledger import SMALLEST_BYTES, HostWriter, host_category
from planner.training.host import CheckpointFiles, Host
from planner.training.optimizers import copy_to_meta


class AbsentHost(HostWriter, Host):
    """A host on which nothing is filled, clipped or kept, but written down; see `planner.training.host.Host`.

    Tensors are known by their storages, of which each is one block until it is freed. `pins_gradients`: gradients are
    in pinned memory, whatever they were traced in. Steps of optimizers pass over the parameters that rest here: the
    state of these is taken once.
    """

    def __init__(self, *, pins_gradients: bool) -> None:
        super().__init__()
        self._pins_gradients = pins_gradients
        self.events: list[HostEvent] = []
        self.assumed: set[str] = set()
        """What of the host could not be found out, as sentences."""
        self._held: dict[int, tuple[int, HostCategory]] = {}
        """The blocks of storages that are alive, by their ids."""
        self._pinned: weakref.WeakSet[Any] = weakref.WeakSet()
        self._gradients: dict[Optimizer, list[tuple[Tensor, Tensor]]] = {}
        """Parameters on the host with the gradients that an optimizer at work does not see."""
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def write(self, event: HostEvent) -> None:
        self.events.append(event)

    def mark(self, phase: Phase, iteration: int) -> None:
        self.write(Mark(phase, iteration))

    def assign(self, tensor: Tensor, category: Category, _name: str = "") -> None:
        """The storage of this tensor, if it lies on the host, is held for this from here until it is freed; what was
        said of it first stands."""
        storage = _host_storage(tensor)
        if storage is None or id(storage) in self._held:
            return
        purpose = host_category(category)
        pinned = storage in self._pinned or local_part(tensor).is_pinned()
        pinned = pinned or (self._pins_gradients and purpose is HostCategory.GRADIENT)
        self._held[id(storage)] = self.begin(storage.nbytes(), purpose, pinned=pinned), purpose
        weakref.finalize(storage, self._give_up, id(storage)).atexit = False

    def pin(self, tensor: Tensor) -> None:
        """The storage of this tensor is in pinned memory from here on: first taken there, then freed here."""
        storage = _host_storage(tensor)
        if storage is None or storage in self._pinned:
            return
        self._pinned.add(storage)
        if (known := self._held.get(id(storage))) is not None:
            block, purpose = known
            self._held[id(storage)] = self.begin(storage.nbytes(), purpose, pinned=True), purpose
            self.end(block)

    def _give_up(self, key: int) -> None:
        self.end(self._held.pop(key)[0])

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        self.write(BatchTaken(tuple(tensor.nbytes for tensor in tensors)))

    def fill(self, parameter: Tensor) -> None:
        if parameter.device.type != "cpu":
            super().fill(parameter)

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return [parameter for parameter in parameters if parameter.device.type != "cpu"]

    def take_result(self, tensor: Tensor) -> None: ...

    def saving_activations(self) -> AbstractContextManager[Any]:
        # What was saved comes back contiguous, in memory of its own.
        return saved_tensors_hooks(
            self._save, lambda saved: torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        )

    def keep(self, category: HostCategory, *sizes: int) -> None:
        for size in sizes:
            self.begin(size, category)

    def set_aside(self, storage: torch.UntypedStorage, category: HostCategory) -> int:
        return self.begin(storage.nbytes(), category)

    def put_back(self, _storage: torch.UntypedStorage, content: int) -> None:
        self.end(content)

    def checkpoint_files(self) -> CheckpointFiles:
        # Jobs that save alone pay for the import of torch.distributed.checkpoint.
        from planner.tracing.spec.checkpoints import UnwrittenFiles

        return UnwrittenFiles(self)

    def _save(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.device, tensor.shape, tensor.dtype)
        if tensor.nbytes:  # on the host it is pinned, until autograd drops it
            self.hold_while(saved, tensor.nbytes, HostCategory.ACTIVATION, pinned=True)
        return saved

    def begin_step(self, optimizer: Optimizer, *_arguments: Any) -> None:
        """Hides the gradients on the host from an optimizer, which passes over parameters without one."""
        hidden: list[tuple[Tensor, Tensor]] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.device.type == "cpu" and parameter.grad is not None:
                    hidden.append((parameter, parameter.grad))
                    parameter.grad = None
        if not hidden:
            return
        self._gradients[optimizer] = hidden
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)
            self._take_state(optimizer, [parameter for parameter, _ in hidden])

    def end_step(self, optimizer: Optimizer, *_arguments: Any) -> None:
        """Gives the gradients back: DeepSpeed keeps them on the host for the next step."""
        for parameter, grad in self._gradients.pop(optimizer, ()):  # the one that steps on meta has none
            parameter.grad = grad

    def _take_state(self, optimizer: Optimizer, parameters: list[Tensor]) -> None:
        """Holds what the first step keeps of these parameters from here on."""
        try:
            twin = copy_to_meta(optimizer, {parameter: local_part(parameter).shape for parameter in parameters})
            twin.step()
        except Exception as error:  # any code of any optimizer
            name, reason = type(optimizer).__name__, str(error).partition("\n")[0][:200]
            self.assumed.add(
                f"what {name} keeps on the host is not counted: it does not run on meta tensors ({reason})"
            )
            return
        values = (value for kept in twin.state.values() for value in kept.values())
        state = (value.nbytes for value in values if isinstance(value, Tensor) and value.device.type == "meta")
        self.keep(HostCategory.OPTIMIZER_STATE, *(size for size in state if size >= SMALLEST_BYTES))


def _host_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Whose Python object lives as long as the memory: torch 2.1 and later keep it (c10/core/impl/PyObjectSlot.h)."""
    local = local_part(tensor)
    if local.device.type != "cpu":
        return None
    storage = local.untyped_storage()
    return storage if storage.nbytes() >= SMALLEST_BYTES else None


@dataclass(frozen=True, eq=False)
class _Saved:
    device: torch.device
    shape: torch.Size
    dtype: torch.dtype


@contextmanager
def leave_out_host_work(*, pins_gradients: bool = False) -> Iterator[AbsentHost]:
    """Inside, nothing that rests on the host is pinned by torch or stepped by an optimizer; gives the step's host.

    `pins_gradients`: gradients come to the host in pinned memory, as fully_shard's do that nothing waits for in the
    backward (torch 2.13, _fsdp_collectives.py, foreach_reduce: `non_blocking`; ATen/native/TensorConversions.cpp,
    `pin_out`). A watched step has hooks that wait for them.
    """
    host = AbsentHost(pins_gradients=pins_gradients)
    handles = (
        register_optimizer_step_pre_hook(host.begin_step),
        register_optimizer_step_post_hook(host.end_step),
    )
    target = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.reset_sharded_param"
    try:
        with upstream.patch_targets("host not pinned", wrapped={target: partial(_without_pinning, host)}):
            yield host
    finally:
        for handle in handles:
            handle.remove()


def _without_pinning(host: AbsentHost, real: Any) -> Any:
    def is_pinned(tensor: Tensor) -> bool:
        host.pin(tensor)
        return True

    def reset(self: Any) -> None:
        with upstream.patch_targets("said to be pinned", replaced={"torch:Tensor.is_pinned": is_pinned}):
            real(self)

    return reset
