"""Caches what DTensor and fully_shard compute anew for every parameter, though mostly the same.

The results are those that torch gives: each is kept only for arguments that are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from planner import upstream
from planner.training import dtensor_lists

_MESHES = "torch.distributed.device_mesh:DeviceMesh"
_PROPAGATION = "torch.distributed.tensor._dispatch:OpDispatcher._propagate_op_sharding_dispatch_slow_path"


@contextmanager
def once_for_all_parameters() -> Iterator[None]:
    """Inside, equal work is done once. Nothing is remembered beyond.

    torch 2.13: fsdp/_fully_shard/_fsdp_param.py joins the meshes of sharding and tensor parallelism again for every
    parameter; distributed/device_mesh.py compares two meshes rank by rank, which is asked for every operator. For
    lists of tensors see :mod:`planner.training.dtensor_lists`.
    """
    if not dist.is_available():
        yield
        return
    meshes: dict[str, upstream.Wrapper] = {f"{_MESHES}._concatenate": _joining, f"{_MESHES}.__eq__": _comparing}
    lists: dict[str, upstream.Wrapper] = {_PROPAGATION: dtensor_lists.by_groups}
    with upstream.patch_targets("mesh speed", wrapped=meshes), upstream.patch_targets("list speed", wrapped=lists):
        yield


def _joining(real: Callable[[list[Any]], Any]) -> staticmethod[[list[Any]], Any]:
    known: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def join_meshes(meshes: list[Any]) -> Any:
        key = tuple(map(id, meshes))
        if key not in known:
            # The meshes are kept too, or others could come to lie where they were.
            known[key] = (list(meshes), real(meshes))
        return known[key][1]

    return staticmethod(join_meshes)


def _comparing(real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    known: dict[tuple[int, int], tuple[Any, Any, bool]] = {}

    def equal(mesh: Any, other: Any) -> Any:
        if mesh is other:
            return True
        if type(mesh) is not type(other):
            return real(mesh, other)
        key = (id(mesh), id(other))
        if key not in known:
            # The meshes are kept too, as above.
            known[key] = (mesh, other, real(mesh, other))
        return known[key][2]

    return equal
