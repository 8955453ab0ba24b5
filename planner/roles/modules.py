"""Names what modules hold, their gradients, and what optimizers keep of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor, nn
from torch.distributed.fsdp import FlatParameter
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from planner.events import Category
from planner.roles.recording import RoleRecorder
from planner.roles.sharding import path_in_job
from planner.training import optimizers


class ModuleRoles:
    """Of modules on a type of device that are called, and of the optimizers that step them."""

    def __init__(self, recorder: RoleRecorder, device_type: str = "cuda") -> None:
        self._recorder, self._device_type = recorder, device_type
        self._names = WeakIdKeyDictionary()
        """Of parameters and buffers."""

    def take(self, root: nn.Module, owner: str = "") -> None:
        """A module is called that was not before: names what it holds, and its gradients whenever there are any.

        `owner`: what the names begin with."""
        for name, parameter in root.named_parameters():
            # fully_shard waits for a gradient that goes to the host if the parameter has a hook; flat ones are named
            # where FullyShardedDataParallel reduces them.
            is_followed = parameter.device.type == self._device_type and not isinstance(parameter, FlatParameter)
            if parameter.requires_grad and is_followed and parameter not in self._names:
                parameter.register_post_accumulate_grad_hook(partial(self._accumulated, path_in_job(name)))
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            self._names.setdefault(tensor, owner + path_in_job(name))
        self.take_again(root)

    def take_again(self, root: nn.Module) -> None:
        """What it holds may lie elsewhere by now."""
        for tensor in (*root.parameters(), *root.buffers()):
            name = self._names.get(tensor, "")
            self._recorder.assign(tensor, Category.PARAMETER, name)
            for scales in scales_of(tensor):
                self._recorder.assign(scales, Category.PARAMETER, name)

    def assign_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._recorder.assign(parameter.grad, Category.GRADIENT, self._names.get(parameter, ""))

    def begin_step(self, optimizer: Optimizer) -> None:
        for parameter in parameters_of(optimizer):
            self.assign_gradient(parameter)
            if parameter.device.type != self._device_type:  # on the host it may have been pinned in the meantime
                self._recorder.assign(parameter, Category.PARAMETER, self._names.get(parameter, ""))

    def assign_state(self, optimizer: Optimizer) -> None:
        """Every tensor that the optimizer keeps, under its parameter's name; some (`step`) may be on the host."""
        for wrapped in optimizers.stateful_optimizers(optimizer):
            for parameter, state in wrapped.state.items():
                name = self._names.get(parameter, "") if isinstance(parameter, Tensor) else ""
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, Tensor):
                        self._recorder.assign(value, Category.OPTIMIZER_STATE, f"{name}.{key}" if name else str(key))

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._recorder.assign(parameter.grad, Category.GRADIENT, name)


def scales_of(parameter: Tensor) -> Iterator[Tensor]:
    """What a parameter in few bits has beside its packed elements: scales, their own scales, tables (bitsandbytes 0.50,
    functional.py, `QuantState`)."""
    state = getattr(parameter, "quant_state", None)
    while state is not None:
        yield from (value for value in vars(state).values() if isinstance(value, Tensor))
        state = state.state2


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """All that it steps."""
    members = (member for group in optimizer.param_groups for member in group["params"])
    return (member for member in members if isinstance(member, Tensor))
