"""Skips what a traced step does on the host with offloaded tensors, as no device sees it, and writes it down."""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner import upstream
from planner.host_events import HostBlock, HostCategory
from planner.tracing.host_ledger import SMALLEST_BYTES, HostLedger
from planner.training.host import CheckpointFiles, RealHost


@dataclass(frozen=True, slots=True)
class Stepped:
    """Bytes of each tensor that stays, and of what is there besides at the highest point of the first step."""

    state: tuple[int, ...]
    temporary_bytes: int


def step_on_meta(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Stepped:
    """What the optimizer's first step takes for these of its parameters, each of which has a gradient.

    Raises whatever an optimizer raises that does not run on meta tensors.
    """
    mine = {id(each): _on_meta(each) for each in parameters}
    shadow = copy.copy(optimizer)
    shadow.state = defaultdict(dict)
    shadow.param_groups = [
        {**_without_kernels(group), "params": [mine[id(each)] for each in group["params"] if id(each) in mine]}
        for group in optimizer.param_groups
    ]
    fused = any(group.get("fused") for group in optimizer.param_groups)
    with torch.no_grad(), _Counting() as counting:
        shadow.step()
    state = tuple(
        value.nbytes
        for kept in shadow.state.values()
        for value in kept.values()
        if isinstance(value, Tensor) and value.device.type == "meta"
    )
    # A fused kernel updates in place.
    return Stepped(state, 0 if fused else max(0, counting.most_bytes - sum(state)))


def _on_meta(parameter: Tensor) -> Tensor:
    local = getattr(parameter, "_local_tensor", parameter)
    found = torch.nn.Parameter(torch.empty_like(local, device="meta"), requires_grad=local.is_floating_point())
    found.grad = torch.empty_like(found)
    return found


def _without_kernels(group: dict[str, Any]) -> dict[str, Any]:
    """Kernels of devices are refused on meta, which keeps the same state without them."""
    return {**group, **{key: False for key in ("fused", "capturable") if group.get(key)}}


class _Counting(TorchDispatchMode):
    """Counts the bytes of storages on meta that are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes = 0
        self._bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {id(each.untyped_storage()) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.device.type == "meta":
                self._count(each.untyped_storage(), known)
        return found

    def _count(self, storage: Any, known: set[int]) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._alive or key in known:
            return

        def freed(_: object) -> None:
            del self._alive[key]
            self._bytes -= size

        self._alive[key] = weakref.ref(storage, freed)
        self._bytes += size
        self.most_bytes = max(self.most_bytes, self._bytes)


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
        from planner.tracing.spec.checkpoints import UnwrittenFiles

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
