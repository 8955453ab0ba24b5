"""Gathers the trainer's weights for an engine: whole tensors in its dtype, one by one, or by buckets.

As verl hands weights over (0.6, workers/fsdp_workers.py, rollout_mode; from 0.7 on workers/rollout/.../bucketed weight
transfer) and TRL (0.24, trainer/grpo_trainer.py, _move_model_to_vllm): each parameter is gathered with
`DTensor.full_tensor`, cast, and given to the engine, which copies it into its own. While one is gathered the one before
it is still held by the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.events import Category
from planner.training.observer import Observer

_NAME = "weights for the engine"


def send(model: nn.Module, dtype: torch.dtype, bucket_bytes: int, device: torch.device, observer: Observer) -> None:
    """Every parameter of the model, gathered and let go of again."""
    with torch.no_grad():
        if bucket_bytes:
            _send_in_buckets(model, dtype, bucket_bytes, device, observer)
        else:
            for tensor in _whole_tensors(model, dtype, device):
                observer.assign(tensor, Category.COMMUNICATION, _NAME)


def _send_in_buckets(
    model: nn.Module, dtype: torch.dtype, bucket_bytes: int, device: torch.device, observer: Observer
) -> None:
    """A bucket is there as long as the sync; a tensor larger than it is sent alone, by a bucket as large as it."""
    bucket = torch.empty(bucket_bytes, dtype=torch.uint8, device=device)
    observer.assign(bucket, Category.COMMUNICATION, _NAME)
    used = 0
    for tensor in _whole_tensors(model, dtype, device):
        size = tensor.numel() * tensor.element_size()
        if used + size > bucket.numel():
            used = 0
        if size > bucket.numel():
            alone = torch.empty(size, dtype=torch.uint8, device=device)
            alone.copy_(tensor.reshape(-1).view(torch.uint8))
            continue
        bucket[used : used + size].copy_(tensor.reshape(-1).view(torch.uint8))
        used += size


def _whole_tensors(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            # Shards that rest on the host are gathered on the device.
            shard: Any = parameter.detach().to(device)
            yield shard.full_tensor().to(dtype)
        else:
            yield parameter.detach().to(device).to(dtype)
