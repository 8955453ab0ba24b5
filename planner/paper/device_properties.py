"""What a GPU says of itself, of the type that torch has for it."""

from __future__ import annotations

from typing import Any

import torch


def device_properties(**known: Any) -> Any:
    """Answers of `torch.cuda.get_device_properties`; attributes as torch/csrc/cuda/Module.cpp binds them.

    A build for a CPU has an empty class of that name, of which it makes no instance. Dynamo knows constants by their
    types, and takes these for constants (torch 2.13, torch/_dynamo/utils.py common_constant_types).
    """
    made = object.__new__(torch.cuda._CudaDeviceProperties)
    vars(made).update(known)
    return made
