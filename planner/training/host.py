"""Host work of a step on offloaded tensors: really done, or as whoever runs the step has it done.

What the host holds besides is told here too: `hold` and `keep` take blocks of planner.host_events.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

from planner.host_events import HostBlock, HostCategory
from planner.training.checkpoint_files import CheckpointFiles, TemporaryFiles

STANDARD_DEVIATION = 0.02
"""Of the small random values that stand for trained ones."""


class Host(Protocol):
    """How a step treats the host's side of what it offloads."""

    def fill(self, parameter: Tensor) -> None:
        """Gives a parameter, on the device or on the host, small random values."""

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Those of the parameters whose gradients take part in clipping."""

    def take_result(self, tensor: Tensor) -> None:
        """Copies a result to the host, where it is of no further use here."""

    def saving_activations(self) -> AbstractContextManager[Any]:
        """Inside, what autograd saves rests on the host until its backward."""

    def hold(self, *blocks: HostBlock) -> AbstractContextManager[None]:
        """Inside, the process holds these blocks of the host's memory besides all else, in whatever phase that is."""

    def keep(self, *blocks: HostBlock) -> None:
        """From here to the end of the job the process holds these blocks."""

    def take_batch(self, tensors: Iterable[Tensor]) -> None:
        """A micro-batch of these tensors was taken from the data loader."""

    def set_aside(self, storage: torch.UntypedStorage, category: HostCategory) -> Any:
        """What a storage of the device holds, kept on the host while the storage is empty."""

    def put_back(self, storage: torch.UntypedStorage, content: Any) -> None:
        """The storage holds again what was kept."""

    def checkpoint_files(self) -> CheckpointFiles:
        """Where the next checkpoint is written."""


class RealHost:
    """Everything is done; what is held is there, and not told."""

    def fill(self, parameter: Tensor) -> None:
        parameter.normal_(0.0, STANDARD_DEVIATION)

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return list(parameters)

    def take_result(self, tensor: Tensor) -> None:
        tensor.cpu()

    def saving_activations(self) -> AbstractContextManager[Any]:
        return save_on_cpu(pin_memory=torch.cuda.is_available(), device_type="cuda")

    def hold(self, *_blocks: HostBlock) -> AbstractContextManager[None]:
        return nullcontext()

    def keep(self, *_blocks: HostBlock) -> None: ...

    def take_batch(self, _tensors: Iterable[Tensor]) -> None: ...

    def set_aside(self, storage: torch.UntypedStorage, _category: HostCategory) -> Any:
        # Where a CPU stands for the device, Python's memory is the host's: it is not counted as the device's.
        here = storage if storage.device.type == "cpu" else storage.cpu()
        return bytearray(ctypes.string_at(here.data_ptr(), here.nbytes()))

    def put_back(self, storage: torch.UntypedStorage, content: Any) -> None:
        _bytes_of(storage).copy_(torch.frombuffer(content, dtype=torch.uint8))

    def checkpoint_files(self) -> CheckpointFiles:
        return TemporaryFiles()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage)
