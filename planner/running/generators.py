"""The random generators of the paper GPU's devices: their state has the form of CUDA's, and nothing draws from them."""

from __future__ import annotations

import secrets
from typing import Any

import torch

_STATE_BYTES = 16
"""Seed and offset, 8 bytes each (torch 2.13, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp)."""


class DeviceGenerator(torch.Generator):
    """Of one device. As an argument of an operator it is a generator like any other."""

    def __new__(cls, _index: int) -> DeviceGenerator:
        return super().__new__(cls)

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._seed, self._offset = torch.default_generator.initial_seed(), 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def get_state(self) -> torch.Tensor:
        """On the host, as CUDA's."""
        return torch.tensor([self._seed, self._offset], dtype=torch.uint64, device="cpu").view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> DeviceGenerator:
        """Raises RuntimeError for a state of another size, as CUDA's does."""
        if state.numel() * state.element_size() != _STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        seed, offset = state.contiguous().view(torch.uint8).view(torch.uint64).tolist()
        self._seed, self._offset = int(seed), int(offset)
        return self

    def manual_seed(self, seed: int) -> DeviceGenerator:
        self._seed, self._offset = seed % 2**64, 0
        return self

    def seed(self) -> int:
        self.manual_seed(secrets.randbits(53))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> DeviceGenerator:
        self._offset = offset
        return self

    def clone_state(self) -> DeviceGenerator:
        return DeviceGenerator(self._device.index).set_state(self.get_state())

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, other: Any) -> DeviceGenerator:
        return self.set_state(other.get_state())
