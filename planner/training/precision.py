"""Applies autocast around forward and loss, a GradScaler around backward and step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from planner.errors import SpecError

PRECISIONS = ("none", "bf16_autocast", "fp16_autocast", "fsdp_mixed")
_AUTOCAST = {"bf16_autocast": torch.bfloat16, "fp16_autocast": torch.float16}


class Precision:
    """How a job computes: plainly, or under autocast, with a scaler for fp16.

    Pure low precision is `none` with parameters of that dtype; `fsdp_mixed` is the policy of fully_shard,
    which casts by itself.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        """Raises SpecError for a precision that does not exist, RuntimeError if torch turned the scaler off."""
        if name not in PRECISIONS:
            raise SpecError(f"unknown precision {name!r}", allowed=", ".join(PRECISIONS), place="train.precision")
        self._device_type = device.type
        self._dtype = _AUTOCAST.get(name)
        self.scaler = _scaler(device.type) if name == "fp16_autocast" else None

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Around forward and loss, not around backward."""
        if self._dtype is None:
            yield
            return
        with torch.autocast(self._device_type, self._dtype):
            # Both classes look for their device themselves and turn off with a mere warning: a plan without them
            # would be a plan of another program.
            if not torch.is_autocast_enabled(self._device_type):
                raise RuntimeError(f"autocast turned itself off on {self._device_type}")
            yield

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)


def _scaler(device_type: str) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler(device_type)
    if not scaler.is_enabled():
        raise RuntimeError(f"GradScaler turned itself off on {device_type}")
    return scaler
