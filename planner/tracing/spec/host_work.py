"""Skips what a traced step does on the host with offloaded tensors, as no device sees it, and writes it down."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from planner import upstream
from planner.host_events import HostBlock, HostCategory
from planner.paper.native_records import local_part
from planner.tracing.host_ledger import SMALLEST_BYTES, HostLedger, NewStorages, when_gone
from planner.training.host import CheckpointFiles, Host
from planner.training.optimizers import copy_to_meta


@dataclass(frozen=True, slots=True)
class FirstStep:
    """Bytes of each tensor that stays, and of what is there besides at the highest point of the first step."""

    state: tuple[int, ...]
    temporary_bytes: int


def step_on_meta(optimizer: Optimizer, parameters: Sequence[Tensor]) -> FirstStep:
    """What the optimizer's first step takes for these of its parameters, each of which has a gradient.

    Raises whatever an optimizer raises that does not run on meta tensors.
    """
    twin = copy_to_meta(optimizer, {parameter: local_part(parameter).shape for parameter in parameters})
    now = highest = 0

    def give_up(size: int) -> None:
        nonlocal now
        now -= size

    def take(storage: torch.UntypedStorage) -> None:
        nonlocal now, highest
        now += storage.nbytes()
        highest = max(highest, now)
        when_gone(storage, give_up, storage.nbytes())

    with torch.no_grad(), NewStorages("meta", take):
        twin.step()
    state = tuple(
        value.nbytes
        for values in twin.state.values()
        for value in values.values()
        if isinstance(value, Tensor) and value.device.type == "meta"
    )
    # A fused kernel updates in place.
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    return FirstStep(state, 0 if is_fused else max(0, highest - sum(state)))


class AbsentHost(Host):
    """A host of which nothing is filled, clipped or kept, but written down; see `planner.training.host.Host`."""

    def __init__(self, *, pins_gradients: bool) -> None:
        self.ledger = HostLedger(pins_gradients=pins_gradients)
        self.updates_in_place = False
        """Whether optimizers on the host take no temporaries: DeepSpeedCPUAdam is one loop over all elements."""
        self.assumed: set[str] = set()
        """What of the host could not be found out, as sentences."""

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

    def hold(self, *blocks: HostBlock) -> AbstractContextManager[None]:
        return self.ledger.hold(*blocks)

    def keep(self, *blocks: HostBlock) -> None:
        for block in blocks:
            self.ledger.begin(block)

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        self.ledger.take_batch(tensors)

    def set_aside(self, storage: torch.UntypedStorage, category: HostCategory) -> int:
        """Nothing is copied; the host holds it."""
        return self.ledger.begin(HostBlock(bytes=storage.nbytes(), category=category))

    def put_back(self, _storage: torch.UntypedStorage, content: int) -> None:
        self.ledger.end(content)

    def checkpoint_files(self) -> CheckpointFiles:
        # Jobs that save alone pay for the import of torch.distributed.checkpoint.
        from planner.tracing.spec.checkpoints import UnwrittenFiles

        return UnwrittenFiles(self.ledger)

    def _save(self, tensor: Tensor) -> _Saved:
        """As the device sees it, what was saved is gone; on the host it is pinned, until autograd drops it."""
        saved = _Saved(tensor.device, tensor.shape, tensor.dtype)
        if tensor.nbytes:
            held = HostBlock(bytes=tensor.nbytes, category=HostCategory.ACTIVATION, pinned=True)
            self.ledger.hold_while(saved, held)
        return saved


@dataclass(frozen=True, eq=False)
class _Saved:
    device: torch.device
    shape: torch.Size
    dtype: torch.dtype


@contextmanager
def left_out(*, pins_gradients: bool = False) -> Iterator[AbsentHost]:
    """Inside, nothing that rests on the host is pinned by torch or stepped by an optimizer; gives the step's host.

    `pins_gradients`: gradients come to the host in pinned memory, as fully_shard's do that nothing waits for in the
    backward (torch 2.13, _fsdp_collectives.py, foreach_reduce: `non_blocking`; ATen/native/TensorConversions.cpp,
    `pin_out`). A watched step has hooks that wait for them.
    """
    host, steps = AbsentHost(pins_gradients=pins_gradients), _Steps()
    handles = (
        register_optimizer_step_pre_hook(partial(steps.begin, host)),
        register_optimizer_step_post_hook(partial(steps.end, host)),
    )
    target = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.reset_sharded_param"
    try:
        with upstream.patch_targets("host not pinned", wrapped={target: partial(_without_pinning, host.ledger)}):
            yield host
    finally:
        for handle in handles:
            handle.remove()


class _Steps:
    """Steps of optimizers, which pass over what rests on the host: they take no state for it here."""

    def __init__(self) -> None:
        self._dropped: dict[Optimizer, list[tuple[Tensor, Tensor]]] = {}
        self._known: weakref.WeakKeyDictionary[Optimizer, FirstStep] = weakref.WeakKeyDictionary()
        self._temporary: list[int] = []

    def begin(self, host: AbsentHost, optimizer: Optimizer, *_arguments: Any) -> None:
        """An optimizer passes over parameters without a gradient."""
        dropped: list[tuple[Tensor, Tensor]] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.device.type == "cpu" and parameter.grad is not None:
                    dropped.append((parameter, parameter.grad))
                    parameter.grad = None
        if not dropped:
            return
        self._dropped[optimizer] = dropped
        if optimizer not in self._known:
            self._known[optimizer] = step = _first_step(host, optimizer, [parameter for parameter, _ in dropped])
            sizes = (size for size in step.state if size >= SMALLEST_BYTES)
            host.keep(*(HostBlock(bytes=size, category=HostCategory.OPTIMIZER_STATE) for size in sizes))
        temporary = 0 if host.updates_in_place else self._known[optimizer].temporary_bytes
        if temporary:
            held = HostBlock(bytes=temporary, category=HostCategory.TEMPORARY, name="optimizer step")
            self._temporary.append(host.ledger.begin(held))

    def end(self, host: AbsentHost, optimizer: Optimizer, *_arguments: Any) -> None:
        """DeepSpeed keeps its gradients on the host for the next step."""
        if optimizer not in self._dropped:  # such as the one that steps on meta
            return
        while self._temporary:
            host.ledger.end(self._temporary.pop())
        for parameter, grad in self._dropped.pop(optimizer):
            parameter.grad = grad


def _first_step(host: AbsentHost, optimizer: Optimizer, parameters: list[Tensor]) -> FirstStep:
    try:
        return step_on_meta(optimizer, parameters)
    except Exception as error:  # any code of any optimizer
        name, reason = type(optimizer).__name__, str(error).partition("\n")[0][:200]
        host.assumed.add(f"what {name} keeps on the host is not counted: it does not run on meta tensors ({reason})")
        return FirstStep((), 0)


def _without_pinning(ledger: HostLedger, real: Any) -> Any:
    def is_pinned(tensor: Tensor) -> bool:
        ledger.pin(tensor)
        return True

    def reset(self: Any) -> None:
        with upstream.patch_targets("said to be pinned", replaced={"torch:Tensor.is_pinned": is_pinned}):
            real(self)

    return reset
