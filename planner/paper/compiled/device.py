"""The paper GPU as Dynamo and Inductor ask for it: a device interface, its properties, its part of generated code."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import CudaInterface, DeviceInterface
from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides

from planner.paper.compiled import generated


class _Worker:
    """As a process that compiles kernels would ask."""

    @staticmethod
    def set_device(_device: int) -> None: ...

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_device_properties(_device: Any = None) -> Any:
        return torch.cuda.get_device_properties(0)


def make_interface() -> type[DeviceInterface]:
    """What `torch.cuda` answers now, which CudaInterface of torch has taken when it was imported."""

    class PaperInterface(CudaInterface):
        device = torch.cuda.device
        Event = torch.cuda.Event
        Stream = torch.cuda.Stream
        Worker = _Worker  # type: ignore[assignment]
        current_device = staticmethod(torch.cuda.current_device)
        set_device = staticmethod(torch.cuda.set_device)
        device_count = staticmethod(torch.cuda.device_count)
        stream = staticmethod(torch.cuda.stream)
        current_stream = staticmethod(torch.cuda.current_stream)
        set_stream = staticmethod(torch.cuda.set_stream)
        synchronize = staticmethod(torch.cuda.synchronize)
        get_device_properties = staticmethod(torch.cuda.get_device_properties)
        get_raw_stream = staticmethod(generated.get_raw_stream)
        exchange_device = staticmethod(torch.cuda._exchange_device)
        maybe_exchange_device = staticmethod(torch.cuda._maybe_exchange_device)
        memory_allocated = staticmethod(torch.cuda.memory_allocated)
        is_bf16_supported = staticmethod(torch.cuda.is_bf16_supported)

        @staticmethod
        def raise_if_triton_unavailable(device: Any = None) -> None:
            """Kernels are written for Triton and never run: the package is not needed."""

    return PaperInterface


class PaperOps(CUDADeviceOpOverrides):
    """CUDA's part of generated code, where nothing has a stream of the driver."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from planner.paper.compiled.generated import get_raw_stream as {name}"
