"""Names of dtypes, as a job writes them."""

from __future__ import annotations

import torch

from planner.errors import SpecError

FLOATING = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
INTEGER = {
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8,
    "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


def floating(name: str, *, place: str) -> torch.dtype:
    """The floating-point dtype of that name; SpecError for any other name."""
    if name not in FLOATING:
        raise SpecError(f"{name!r} is no floating-point dtype", allowed=", ".join(FLOATING), place=place)
    return FLOATING[name]


def any_dtype(name: str, *, place: str) -> torch.dtype:
    """The dtype of that name; SpecError for an unknown one."""
    known = FLOATING | INTEGER
    if name not in known:
        raise SpecError(f"{name!r} is no dtype", allowed=", ".join(known), place=place)
    return known[name]
