"""Skips what a traced step does on the host with offloaded tensors, as no device sees it, and writes it down.

Parameters that rest on the host would take their real memory on the machine that plans, several times over: pinned
copies, clipped gradients, the optimizer's state. Each of these happens on the host alone, and is told to a ledger.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from planner import upstream
from planner.host_events import HostBlock, HostCategory
from planner.tracing.host_ledger import SMALLEST_BYTES, HostLedger
from planner.tracing.stepped_on_meta import Stepped, step_on_meta
from planner.training.checkpoint_files import CheckpointFiles
from planner.training.host import RealHost


class AbsentHost:
    """A host of which nothing is filled, clipped or kept, but written down; see `planner.training.host.Host`."""

    def __init__(self, *, pins_gradients: bool) -> None:
        self.ledger = HostLedger(pins_gradients=pins_gradients)
        self.updates_in_place = False
        """Whether optimizers on the host take no temporaries: DeepSpeedCPUAdam is one loop over all elements."""
        self.assumed: set[str] = set()
        """What of the host could not be found out, as sentences."""

    def fill(self, parameter: Tensor) -> None:
        if parameter.device.type != "cpu":
            RealHost().fill(parameter)

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return [each for each in parameters if each.device.type != "cpu"]

    def take_result(self, tensor: Tensor) -> None: ...

    def saving_activations(self) -> AbstractContextManager[Any]:
        return saved_tensors_hooks(self._save, _empty_like)

    def hold(self, *blocks: HostBlock) -> AbstractContextManager[None]:
        return self.ledger.hold(*blocks)

    def keep(self, *blocks: HostBlock) -> None:
        for each in blocks:
            self.ledger.begin(each)

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        self.ledger.take_batch(tensors)

    def set_aside(self, storage: torch.UntypedStorage, category: HostCategory) -> int:
        """Nothing is copied; the host holds it."""
        return self.ledger.begin(HostBlock(bytes=storage.nbytes(), category=category))

    def put_back(self, _storage: torch.UntypedStorage, content: int) -> None:
        self.ledger.end(content)

    def checkpoint_files(self) -> CheckpointFiles:
        # Jobs that save alone pay for the import of torch.distributed.checkpoint.
        from planner.tracing.unwritten_checkpoints import UnwrittenFiles

        return UnwrittenFiles(self.ledger)

    def _save(self, tensor: Tensor) -> _Saved:
        """As the device sees it, what was saved is gone; on the host it is pinned, until autograd drops it."""
        saved = _Saved(tensor.device, tensor.shape, tensor.dtype)
        held = HostBlock(bytes=tensor.nbytes, category=HostCategory.ACTIVATION, pinned=True)
        if tensor.nbytes:
            weakref.finalize(saved, self.ledger.end, self.ledger.begin(held)).atexit = False
        return saved


class _Saved:
    """What autograd keeps in place of a tensor."""

    def __init__(self, device: torch.device, shape: torch.Size, dtype: torch.dtype) -> None:
        self.device, self.shape, self.dtype = device, shape, dtype


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
        self._known: weakref.WeakKeyDictionary[Optimizer, Stepped] = weakref.WeakKeyDictionary()
        self._temporary: list[int] = []

    def begin(self, host: AbsentHost, optimizer: Optimizer, *_arguments: Any) -> None:
        """An optimizer passes over parameters without a gradient."""
        here: list[tuple[Tensor, Tensor]] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.device.type == "cpu" and parameter.grad is not None:
                    here.append((parameter, parameter.grad))
                    parameter.grad = None
        if here:
            self._dropped[optimizer] = here
            self._tell(host, optimizer, [parameter for parameter, _ in here])

    def end(self, host: AbsentHost, optimizer: Optimizer, *_arguments: Any) -> None:
        """DeepSpeed keeps its gradients on the host for the next step."""
        if optimizer not in self._dropped:  # such as the one that steps on meta
            return
        while self._temporary:
            host.ledger.end(self._temporary.pop())
        for parameter, grad in self._dropped.pop(optimizer):
            parameter.grad = grad

    def _tell(self, host: AbsentHost, optimizer: Optimizer, parameters: list[Tensor]) -> None:
        if optimizer not in self._known:
            self._known[optimizer] = stepped = self._first_step(host, optimizer, parameters)
            kept = (each for each in stepped.state if each >= SMALLEST_BYTES)
            host.keep(*(HostBlock(bytes=each, category=HostCategory.OPTIMIZER_STATE) for each in kept))
        temporary = 0 if host.updates_in_place else self._known[optimizer].temporary_bytes
        if temporary:
            held = HostBlock(bytes=temporary, category=HostCategory.TEMPORARY, name="optimizer step")
            self._temporary.append(host.ledger.begin(held))

    @staticmethod
    def _first_step(host: AbsentHost, optimizer: Optimizer, parameters: list[Tensor]) -> Stepped:
        try:
            return step_on_meta(optimizer, parameters)
        except Exception as error:  # any code of any optimizer
            name, said = type(optimizer).__name__, str(error).partition("\n")[0][:200]
            host.assumed.add(f"what {name} keeps on the host is not counted: it does not run on meta tensors ({said})")
            return Stepped((), 0)


def _empty_like(saved: _Saved) -> Tensor:
    """It comes back contiguous, in memory of its own."""
    return torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)


def _without_pinning(ledger: HostLedger, real: Any) -> Any:
    def is_pinned(tensor: Tensor) -> bool:
        ledger.pin(tensor)
        return True

    def reset(self: Any) -> None:
        with upstream.patch_targets("said to be pinned", replaced={"torch:Tensor.is_pinned": is_pinned}):
            real(self)

    return reset
