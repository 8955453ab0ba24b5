"""Large tensors of the host that a traced program keeps what it offloads in: taken, and never written.

Pages that nobody writes are no memory. What would be computed there is read by nobody: no device sees it, and the
optimizer's own work on the host is left out as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LARGE_BYTES = 64 << 20
"""Below that a program gets what it asked for."""


class UntouchedHost(TorchFunctionMode):
    """Inside, large tensors of the host are not filled, copied or computed with; `pin` is told of what is pinned."""

    def __init__(self, pin: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._pin = pin

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        instead = _INSTEAD.get(func)
        if instead is not None and _is_large(args[0]):
            return instead(func, *args, **(kwargs or {}))
        if func is Tensor.pin_memory:
            self._pin(args[0])
            return args[0]
        if func is torch.zeros:
            return _make_unfilled(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _is_large(tensor: Any) -> bool:
    """Or a part of a large one, or several that are large together."""
    if isinstance(tensor, list | tuple):
        host = all(isinstance(each, Tensor) and each.device.type == "cpu" for each in tensor)
        return host and sum(each.nbytes for each in tensor) > _LARGE_BYTES
    if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
        return False
    return tensor.untyped_storage().nbytes() > _LARGE_BYTES


def _make_unfilled(*size: Any, **options: Any) -> Tensor:
    """Zeros are zeros without being written, as long as they are new."""
    taken = torch.empty(*size, **options)
    return taken if _is_large(taken) else taken.zero_()


def _another(_func: Any, tensor: Tensor, *_args: Any, **_options: Any) -> Tensor:
    return torch.empty_like(tensor)


def _itself(_func: Any, tensor: Tensor, *_args: Any, **_options: Any) -> Tensor:
    return tensor


def _joined(_func: Any, tensors: Sequence[Tensor], *_args: Any, **_options: Any) -> Tensor:
    return torch.empty(sum(each.numel() for each in tensors), dtype=tensors[0].dtype)


def _nothing_found(_func: Any, _tensor: Tensor, *_args: Any, **_options: Any) -> Tensor:
    return torch.zeros(1, dtype=torch.bool)


def _move_tensor(func: Any, tensor: Tensor, *args: Any, **options: Any) -> Any:
    """To a device as ever; within the host, to memory of the dtype that was asked for."""
    to = torch.empty(0, dtype=tensor.dtype).to(*args, **options)
    if to.device.type != "cpu":
        return func(tensor, *args, **options)
    return tensor if to.dtype == tensor.dtype else torch.empty(tensor.shape, dtype=to.dtype)


_INSTEAD: dict[Any, Callable[..., Any]] = {
    Tensor.clone: _another,
    Tensor.copy_: _itself,
    Tensor.div_: _itself,
    Tensor.fill_: _itself,
    Tensor.mul_: _itself,
    Tensor.to: _move_tensor,
    Tensor.zero_: _itself,
    torch._C._nn.flatten_dense_tensors: _joined,
    torch.isinf: _nothing_found,
    torch.isnan: _nothing_found,
}
