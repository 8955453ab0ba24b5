"""The target `cpu`: what a CPU build does otherwise than CUDA above the level of kernels, for tests against real runs.

Composite operators choose fused kernels by the type of the device, and the paper GPU's is CUDA: here they are led to
the CPU's way before they choose. cuDNN is off. What a kernel does otherwise is in the table of kernels (`@cpu`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.paper.kernels import cpu_convolution, cpu_norms

_aten = torch.ops.aten
_INSTEAD: dict[Any, Callable[..., Any]] = {
    _aten.convolution.default: cpu_convolution.convolution,
    _aten.convolution_backward.default: cpu_convolution.convolution_backward,
    _aten.native_batch_norm_backward.default: cpu_norms.batch_norm_backward,
}


class _AsOnCpu(TorchDispatchMode):
    """Operators that a backend is chosen for inside, below autograd."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        instead = _INSTEAD.get(func)
        if instead is not None and args[0].is_cuda:
            return instead(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_cpu() -> Iterator[None]:
    """Inside, the step takes a CPU's way: optimizers loop over parameters, norms and convolutions are the CPU's."""
    # torch 2.13, torch/utils/_foreach_utils.py; the package hides the module behind a class of that name.
    optimizers = sys.modules["torch.optim.optimizer"]
    with (
        mock.patch.object(optimizers, "_get_foreach_kernels_supported_devices", return_value=[]),
        mock.patch.object(torch.nn.functional, "rms_norm", cpu_norms.rms_norm),
        torch.backends.cudnn.flags(enabled=False),
        _AsOnCpu(),
    ):
        yield
