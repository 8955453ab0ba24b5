"""Which block of the paper GPU lies behind a tensor, and which operator asked for it."""

from __future__ import annotations

import torch

from planner.paper import library


def block_of(tensor: torch.Tensor) -> int | None:
    """The block behind a tensor on the paper GPU; None for one that has none."""
    local = getattr(tensor, "_local_tensor", tensor)
    if local.device.type != "cuda":
        return None
    block: int = library.load().paper_block_at(local.untyped_storage().data_ptr())
    return block if block >= 0 else None


def operator_of(tensor: torch.Tensor) -> str:
    """The operator that made the storage of a tensor (`aten.ne`); empty for one that has none here."""
    block, native = block_of(tensor), library.load()
    index = -1 if block is None else native.paper_operator_of(block)
    return "" if index < 0 else native.paper_name(index).decode().replace("::", ".")
