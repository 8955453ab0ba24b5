"""What a GPU says of itself, of the type that torch has for it."""

from __future__ import annotations

from typing import Any


class DeviceProperties:
    """An answer of `torch.cuda.get_device_properties`; attributes as torch/csrc/cuda/Module.cpp binds them.

    It stands for `torch.cuda._CudaDeviceProperties`, of which nothing can be made: a build for a CPU has an empty class
    of that name, a CUDA build one without a constructor.
    """

    def __init__(self, **properties: Any) -> None:
        vars(self).update(properties)

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"_CudaDeviceProperties({known})"
