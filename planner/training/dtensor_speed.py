"""Caches what DTensor and fully_shard compute anew for every parameter, though mostly the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor

from planner import upstream

# torch 2.13 asks for each tensor of a list (`_foreach_`, `_fused_`) which placements there are and what each costs
# (distributed/tensor/_sharding_prop.py), a millisecond for each parameter. Tensors at two places of the lists that are
# equal have equal answers, so one of each kind is asked for, by torch's own code.
_LIST_OPERATORS = ("aten::_foreach_", "aten::_fused_")


def propagate_by_groups(real: Callable[..., Any]) -> Callable[..., Any]:
    """OpDispatcher's way to the sharding of an operator, for one tensor of each kind in its lists."""

    def propagate(dispatcher: Any, op: Any, args: Any, kwargs: Any, op_info: Any, *rest: Any) -> Any:
        groups = _find_groups(op, op_info.schema)
        if groups is None:
            return real(dispatcher, op, args, kwargs, op_info, *rest)
        firsts = [groups.index(group) for group in range(max(groups) + 1)]
        short = replace(op_info, schema=_take(op_info.schema, firsts))
        sharding = real(dispatcher, op, args, kwargs, short, *rest)
        # Specs of the whole lists are shared, as those are that torch keeps for equal operators.
        schema = sharding.redistribute_schema
        return replace(
            sharding,
            output_spec=_take_places(sharding.output_spec, groups),
            redistribute_schema=None if schema is None else _take(schema, groups),
        )

    return propagate


def _find_groups(op: Any, schema: Any) -> list[int] | None:
    """For each place of the lists the number of its group; None where there is nothing to group, or something that is
    not one list beside another."""
    if schema is None or not op.name().startswith(_LIST_OPERATORS):
        return None
    lists = [each for each in schema.args_schema if _is_list(each) and each]
    if not lists or len({len(each) for each in lists}) > 1 or any(map(_is_list, schema.kwargs_schema.values())):
        return None
    keys = [tuple(map(_key, column)) for column in zip(*lists, strict=True)]
    if any(None in key for key in keys):
        return None
    known: dict[tuple[Any, ...], int] = {}
    groups = [known.setdefault(key, len(known)) for key in keys]
    return None if len(known) == len(keys) else groups


def _take(schema: Any, places: Sequence[int]) -> Any:
    """The operator with these places of its lists."""
    arguments = tuple(_take_places(value, places) for value in schema.args_schema)
    return type(schema)(schema.op, arguments, schema.kwargs_schema, schema.schema_info)


def _take_places(value: Any, places: Sequence[int]) -> Any:
    return type(value)(value[place] for place in places) if _is_list(value) and value else value


def _is_list(value: Any) -> bool:
    return type(value) in (list, tuple)


def _key(value: Any) -> Any:
    """All that the answer for a value of a list depends on; None for what is not a tensor laid out on a mesh."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    if not isinstance(value, DTensorSpec) or value.tensor_meta is None:
        return None
    return (value, getattr(value, "use_strided_shard_as_shard_order", None))


_MESHES = "torch.distributed.device_mesh:DeviceMesh"
_PROPAGATION = "torch.distributed.tensor._dispatch:OpDispatcher._propagate_op_sharding_dispatch_slow_path"


@contextmanager
def cache_mesh_work() -> Iterator[None]:
    """Inside, equal work is done once. Nothing is remembered beyond.

    torch 2.13: fsdp/_fully_shard/_fsdp_param.py joins the meshes of sharding and tensor parallelism again for every
    parameter; distributed/device_mesh.py compares two meshes rank by rank, which is asked for every operator.
    """
    if not dist.is_available():
        yield
        return
    meshes: dict[str, upstream.Wrapper] = {f"{_MESHES}._concatenate": _joining, f"{_MESHES}.__eq__": _comparing}
    lists: dict[str, upstream.Wrapper] = {_PROPAGATION: propagate_by_groups}
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


# fully_shard makes a list of as many chunks as there are ranks, for every parameter, and takes two of them (torch
# 2.13, distributed/fsdp/_fully_shard/_fsdp_common.py, `_chunk_with_empty`).
_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty"


class ShardChunks(Sequence[Tensor]):
    """What torch.chunk makes of a tensor, filled up with empty tensors to `number`."""

    def __init__(self, tensor: Tensor, number: int, dim: int) -> None:
        self._tensor, self._number, self._dim = tensor, number, dim
        self._rows = -(-tensor.size(dim) // number)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._chunk(number) for number in range(self._number)[index]]
        return self._chunk(range(self._number)[index])

    def _chunk(self, number: int) -> Tensor:
        size, start = self._tensor.size(self._dim), number * self._rows
        if 0 < size <= start:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._rows, size - start))


@contextmanager
def make_chunks_lazily() -> Iterator[None]:
    """Inside, fully_shard makes the chunks that it takes and no others."""
    if not dist.is_available():
        yield
        return
    with upstream.patch_targets("shard chunks", replaced={_TARGET: _chunk_with_empty}):
        yield


def _chunk_with_empty(tensor: Tensor, num_chunks: int, dim: int) -> ShardChunks:
    return ShardChunks(tensor, num_chunks, dim)
