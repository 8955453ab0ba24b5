"""Samples of torch's own operator database, run forward and backward on any device.

The database (`torch.testing._internal.common_methods_invocations.op_db`) says for every operator which inputs it takes.
They are made on the host and moved, so that every device is given the same values.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

_DATABASE = "torch.testing._internal.common_methods_invocations"
_EXPECTTEST = "expecttest"
_ARGUMENTS_ON_HOST = ("tensor_split",)
"""Operators that want the places to split at on the host, whatever they split."""


@dataclass(frozen=True, slots=True)
class Described:
    """What can be said of a tensor without its values."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None
    """0 for a dim along which nobody steps; None for a layout that has no strides (sparse)."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Described:
        shape = tuple(tensor.shape)
        strides = None
        if tensor.layout is torch.strided:
            steps = zip(shape, tensor.stride(), strict=True)
            strides = tuple(stride if size > 1 and tensor.numel() else 0 for size, stride in steps)
        return cls(shape, str(tensor.dtype).removeprefix("torch."), strides)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of an operator and the gradients of its inputs, None where there is no gradient."""

    results: tuple[Described | int | float | bool | None, ...]
    gradients: tuple[Described | None, ...]


@dataclass(frozen=True, slots=True)
class OperatorSample:
    """One call of one operator: inputs on the host, in one dtype."""

    operator: str
    dtype: str
    number: int
    call: Callable[..., Any]
    given: tuple[Any, tuple[Any, ...], dict[str, Any]]
    differentiable: Callable[[Any], Any]
    """From the results to what a loss may depend on (no phases of eigenvectors)."""

    def run(self, device: torch.device, mark: Callable[[str], None] = lambda _: None) -> Outcome:
        """The outcome on this device. `mark` hears `forward`, `gradient`, `backward` and `end` as `Operator`'s does,
        for whoever records allocations between them."""
        given, arguments, named = self._given_on(device)
        trained = [each for each in _tensors((given, arguments, named)) if each.requires_grad]
        mark("forward")
        result = self.call(given, *arguments, **named)
        mark("gradient")
        outputs = [
            each
            for each in _tensors(self.differentiable(result))
            if each.requires_grad and each.layout is torch.strided
        ]
        starts = [torch.ones_like(each) for each in outputs]
        mark("backward")
        gradients = torch.autograd.grad(outputs, trained, starts, allow_unused=True) if outputs and trained else ()
        mark("end")
        return Outcome(
            tuple(_described(each) for each in pytree.tree_leaves(result)),
            tuple(None if each is None else Described.of(each) for each in gradients),
        )

    def _given_on(self, device: torch.device) -> Any:
        given, arguments, named = self.given
        if self.operator in _ARGUMENTS_ON_HOST:
            return _moved(given, device), arguments, named
        return pytree.tree_map(lambda each: _moved(each, device), self.given)


def entries() -> list[Any]:
    """The database's entries (OpInfo); 702 in torch 2.13."""
    if importlib.util.find_spec(_EXPECTTEST) is None:
        # torch's own test cases derive from it (torch 2.13, torch/testing/_internal/common_utils.py); none is run here.
        standin: Any = ModuleType(_EXPECTTEST)
        standin.TestCase = unittest.TestCase
        sys.modules.setdefault(_EXPECTTEST, standin)
    return list(importlib.import_module(_DATABASE).op_db)


def name_of(entry: Any) -> str:
    """The operator's name with its variant: `linalg.lstsq.grad_oriented`."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def samples_of(entry: Any, dtype: torch.dtype, *, most: int | None = None, seed: int = 0) -> Iterator[OperatorSample]:
    """Calls of an operator as the database makes them, at most so many; with gradients where the dtype has them."""
    torch.manual_seed(seed)
    trains = bool(entry.supports_autograd) and (dtype.is_floating_point or dtype.is_complex)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = entry.sample_inputs("cpu", dtype, requires_grad=trains)
        for number, sample in enumerate(islice(made, most)):
            given = (sample.input, tuple(sample.args), dict(sample.kwargs))
            name, kind = name_of(entry), str(dtype).removeprefix("torch.")
            yield OperatorSample(name, kind, number, entry.op, given, sample.output_process_fn_grad)


def dtypes_of(entry: Any, wanted: tuple[torch.dtype, ...]) -> list[torch.dtype]:
    """Those of the wanted dtypes that the operator has on CPUs and GPUs; if there are none, one that it has."""
    both = entry.supported_dtypes("cpu") & entry.supported_dtypes("cuda")
    return [dtype for dtype in wanted if dtype in both] or sorted(both, key=str)[:1]


def _moved(value: Any, device: torch.device) -> Any:
    """A copy with the same strides, within a storage as large as that of the sample."""
    if not isinstance(value, torch.Tensor):
        return torch.device(device.type) if isinstance(value, torch.device) else value
    given = value.detach()
    whole = given
    if given.layout is torch.strided and given.numel() * given.element_size() != given.untyped_storage().nbytes():
        whole = given.as_strided((given.untyped_storage().nbytes() // given.element_size(),), (1,), 0)
    moved = whole.clone() if device.type == "cpu" else whole.to(device)
    if whole is not given:
        moved = moved.as_strided(given.shape, given.stride(), given.storage_offset())
    return moved.requires_grad_(value.requires_grad)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Described.of(value)
    return value if isinstance(value, bool | int | float) else None
