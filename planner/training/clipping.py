"""Clips gradients by their total norm, on one device mesh or on several.

torch 2.13 stacks no DTensors of different meshes, on which expert parallelism leaves the experts and the rest. As
transformers' Trainer does (5.23, `_mixed_mesh_grad_norm`), and torchtitan: one norm for each mesh, then that of both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

_REMARKS = logging.getLogger("torch.distributed.tensor._redistribute")


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters of each mesh, in the order in which they come."""
    found: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(mesh, []).append(parameter)
    return list(found.values())


def clip(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Gradients scaled, in place, so that their norm is `limit` at most."""
    groups = by_mesh(parameters)
    if len(groups) < 2:
        clip_grad_norm_(groups[0] if groups else [], limit)
        return
    total = torch.linalg.vector_norm(torch.stack([_norm(group) for group in groups]))
    for group in groups:
        clip_grads_with_norm_(group, limit, total)


def _norm(group: Sequence[nn.Parameter]) -> Tensor:
    norm = get_total_norm([each.grad for each in group if each.grad is not None])
    if not isinstance(norm, DTensor):
        return norm
    before = _REMARKS.level
    _REMARKS.setLevel(logging.ERROR)  # that one number is reduced along one axis after the other
    try:
        return norm.full_tensor()
    finally:
        _REMARKS.setLevel(before)
