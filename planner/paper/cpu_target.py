"""The target `cpu`: what a CPU build does otherwise than CUDA above the level of kernels, for tests against real runs.

Composite operators choose fused kernels by the type of the device, and the paper GPU's is CUDA: here they are led to
the CPU's way before they choose. cuDNN is off. What a kernel does otherwise is in the table of kernels (`@cpu`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from planner import upstream
from planner.paper.kernels import cpu_convolution, cpu_norms, loss  # noqa: F401

_INSTEAD: dict[str, Callable[..., Any]] = {
    "convolution": cpu_convolution.convolution,
    "convolution_backward": cpu_convolution.convolution_backward,
    "native_batch_norm_backward": cpu_norms.batch_norm_backward,
}


@contextmanager
def _operators() -> Iterator[None]:
    """Operators inside which a backend is chosen, below autograd; at the end CUDA's are in force again.

    Not a dispatch mode: with one, autograd adds gradients up out of place (torch 2.13,
    aten/src/ATen/TensorSubclassLikeUtils.h).
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, instead in _INSTEAD.items():
            library.impl(name, instead, "CUDA")
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def as_on_cpu() -> Iterator[None]:
    """Inside, the step takes a CPU's way: optimizers loop over parameters, norms and convolutions are the CPU's."""
    replaced: dict[str, Callable[..., Any]] = {
        "torch.optim.optimizer:_get_foreach_kernels_supported_devices": list,
        "torch.nn.functional:rms_norm": cpu_norms.rms_norm,
    }
    with (
        upstream.patch_targets("cpu target", replaced=replaced),
        torch.backends.cudnn.flags(enabled=False),
        _operators(),
    ):
        yield
