"""Caches what DTensor and fully_shard compute anew for every parameter, though mostly the same.

The results are those that torch gives: each is kept only for arguments that are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from planner import upstream

_MESHES = "torch.distributed.device_mesh:DeviceMesh"
_PROPAGATION = "torch.distributed.tensor._sharding_prop"


@contextmanager
def once_for_all_parameters() -> Iterator[None]:
    """Inside, equal work is done once. Nothing is remembered beyond.

    torch 2.13: fsdp/_fully_shard/_fsdp_param.py joins the meshes of sharding and tensor parallelism again for every
    parameter; distributed/device_mesh.py compares two meshes rank by rank, which is asked for every operator;
    tensor/_ops/single_dim_strategy.py asks for every tensor of a list (`_foreach_`, `_fused_`) which of all placements
    there are, and what each costs.
    """
    if not dist.is_available():
        yield
        return
    meshes: dict[str, upstream.Wrapper] = {f"{_MESHES}._concatenate": _joining, f"{_MESHES}.__eq__": _comparing}
    lists = _ListOperators()
    taking: dict[str, upstream.Wrapper] = {
        f"{_PROPAGATION}:_expand_single_dim_strategy_to_mesh": lists.beginning,
        "torch.distributed.tensor._ops.utils:expand_to_full_mesh_op_strategy": lists.expanding,
        f"{_PROPAGATION}:_propagate_use_strided_shard_flag": lists.completing,
    }
    with upstream.patch_targets("mesh speed", wrapped=meshes), upstream.patch_targets("list speed", wrapped=taking):
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


class _ListOperators:
    """The operators on lists of tensors, one at a time: tensors that are laid out alike share one answer."""

    def __init__(self) -> None:
        self._begun = False
        self._known: dict[tuple[Any, ...], Any] = {}
        self._completed: dict[int, Any] = {}

    def beginning(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The next operator begins. What torch does to an answer afterwards hinges on all of the list."""

        def begin(*arguments: Any) -> Any:
            self._begun = True
            self._known.clear()
            self._completed.clear()
            return real(*arguments)

        return begin

    def expanding(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def expand(mesh: Any, op_schema: Any, strategies: Any, **named: Any) -> Any:
            # A torch that never says where an operator begins is asked each time.
            key = _key(mesh, op_schema, strategies, named) if self._begun else None
            if key is None:
                return real(mesh, op_schema, strategies, **named)
            if key not in self._known:
                self._known[key] = real(mesh, op_schema, strategies, **named)
            return self._known[key]

        return expand

    def completing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def complete(op_strategy: Any, op_schema: Any) -> None:
            if self._begun and id(op_strategy) in self._completed:
                return
            self._completed[id(op_strategy)] = op_strategy
            real(op_strategy, op_schema)

        return complete


def _key(mesh: Any, op_schema: Any, strategies: Any, named: dict[str, Any]) -> tuple[Any, ...] | None:
    """All that the answer hinges on; None where it is not plain."""
    taken = (*op_schema.args_strategy, *op_schema.kwargs_strategy)
    if any(len(each.strategies) != 1 for each in taken):
        return None
    specs = tuple((each.strategies[0].output_spec, _shard_order_flag(each.strategies[0].output_spec)) for each in taken)
    rest = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(named.items()))
    key = (id(mesh), op_schema.op, specs, tuple(map(tuple, strategies)), rest)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _shard_order_flag(spec: Any) -> Any:
    return getattr(spec, "use_strided_shard_as_shard_order", None)
