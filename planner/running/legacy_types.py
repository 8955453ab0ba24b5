"""`torch.cuda.FloatTensor` and its kin, with which programs of old make tensors and ask for types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16, "BoolTensor": torch.bool, "ByteTensor": torch.uint8, "CharTensor": torch.int8,
    "DoubleTensor": torch.float64, "FloatTensor": torch.float32, "HalfTensor": torch.float16, "IntTensor": torch.int32,
    "LongTensor": torch.int64, "ShortTensor": torch.int16,
}  # fmt: skip


class _LegacyType(type):
    """Its classes have no instances: what they make, and what is one of them, are tensors of the device."""

    dtype: torch.dtype

    def __call__(cls, *arguments: Any) -> torch.Tensor:
        """Sizes, or a sequence of values, as the constructors of torch (torch/csrc/utils/tensor_new.cpp)."""
        if len(arguments) == 1 and isinstance(arguments[0], torch.Size):
            arguments = tuple(arguments[0])
        if len(arguments) == 1 and isinstance(arguments[0], Sequence | torch.Tensor):
            return torch.as_tensor(arguments[0], dtype=cls.dtype, device="cuda")
        return torch.empty(arguments or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype


def legacy_types() -> Mapping[str, Any]:
    """By name. torch finds a type by its name where it takes one (`tensor.type(torch.cuda.FloatTensor)`)."""
    return {name: _LegacyType(f"torch.cuda.{name}", (), {"dtype": dtype}) for name, dtype in _DTYPES.items()}
