"""Host work of a step on offloaded tensors: really done, or as whoever runs the step has it done."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

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


class RealHost:
    """Everything is done."""

    def fill(self, parameter: Tensor) -> None:
        parameter.normal_(0.0, STANDARD_DEVIATION)

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return list(parameters)

    def take_result(self, tensor: Tensor) -> None:
        tensor.cpu()

    def saving_activations(self) -> AbstractContextManager[Any]:
        return save_on_cpu(pin_memory=torch.cuda.is_available(), device_type="cuda")
