"""The state of an optimizer as a checkpoint has it, before the optimizer has any: what its first step would make."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from planner.errors import SpecError
from planner.training.checkpoint_reading import Loading

State = dict[str, Any]


def by_numbers(loading: Loading) -> State:
    """As `optimizer.state_dict()`: parameters by their numbers."""
    return _state(loading, {id(each): number for number, each in enumerate(_parameters(loading.optimizer))})


def by_names(loading: Loading) -> State:
    """As `get_optimizer_state_dict` gives it: parameters by their names, whole tensors."""
    return _state(loading, {id(each): name for name, each in loading.model.named_parameters()})


def _state(loading: Loading, keys: dict[int, Any]) -> State:
    optimizer = loading.optimizer
    born = _born(optimizer)
    state = {
        keys[id(parameter)]: {name: _loaded(loading, value) for name, value in values.items()}
        for parameter, values in zip(_parameters(optimizer), born, strict=True)
        if values
    }
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": [keys[id(p)] for p in members]}
        for group in optimizer.param_groups
        if (members := group["params"]) is not None
    ]
    return {"state": state, "param_groups": groups}


def _loaded(loading: Loading, value: Any) -> Any:
    """A tensor from the meta device comes from a file; one of the host (a count of steps) is as it is."""
    if not isinstance(value, Tensor) or value.device.type != "meta":
        return value
    return loading.tensor(value.shape, value.dtype)


def _born(optimizer: Optimizer) -> list[dict[str, Any]]:
    """For each parameter, whole, what a step of a twin on the meta device makes.

    Raises SpecError for an optimizer that does not step there.
    """
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    twin.param_groups = [
        {**_without_kernels(group), "params": [_meta(each) for each in group["params"]]}
        for group in optimizer.param_groups
    ]
    try:
        twin.step()
    except Exception as refusal:
        raise SpecError(
            f"the state that {type(optimizer).__name__} loads is not known: it does not step without a device"
            f" ({type(refusal).__name__}: {str(refusal).splitlines()[0] if str(refusal) else ''})",
            allowed="an optimizer of torch.optim",
            remedy="optimizer: false loads the model alone",
            place="train.checkpoint_load.optimizer",
        ) from refusal
    return [dict(twin.state[each]) for each in _parameters(twin)]


def _without_kernels(group: dict[str, Any]) -> dict[str, Any]:
    """Kernels of devices are refused on meta, which makes the same state but for the counts of steps."""
    return {**group, **{key: False for key in ("fused", "capturable") if group.get(key)}}


def _meta(parameter: Tensor) -> nn.Parameter:
    made = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device="meta"))
    made.grad = torch.empty_like(made)
    return made


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]
