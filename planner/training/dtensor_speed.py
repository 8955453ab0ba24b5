"""What DTensor and fully_shard work out anew for every parameter although it is the same for most of them.

The results are those that torch gives: each is kept only for arguments that are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist

_MEMBERS = ("_expand_single_dim_strategy_to_mesh", "_propagate_use_strided_shard_flag")


@contextmanager
def once_for_all_parameters() -> Iterator[None]:
    """Inside, equal work is done once. Nothing is remembered beyond.

    torch 2.13: fsdp/_fully_shard/_fsdp_param.py joins the meshes of sharding and tensor parallelism again for every
    parameter; distributed/device_mesh.py compares two meshes rank by rank, which is asked for every operator;
    tensor/_ops/single_dim_strategy.py asks for every tensor of a list (`_foreach_`, `_fused_`) which of all placements
    there are, and what each costs.
    """
    with ExitStack() as patched:
        if dist.is_available():
            _patch(patched)
        yield


def _patch(patched: ExitStack) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import _sharding_prop
    from torch.distributed.tensor._ops import utils

    propagation: Any = _sharding_prop
    joined = staticmethod(_joining(DeviceMesh._concatenate))
    patched.enter_context(mock.patch.object(DeviceMesh, "_concatenate", joined))
    patched.enter_context(mock.patch.object(DeviceMesh, "__eq__", _comparing(DeviceMesh.__eq__)))
    if not all(hasattr(propagation, each) for each in _MEMBERS):
        return  # of another torch
    lists = _Lists(
        propagation._expand_single_dim_strategy_to_mesh,
        utils.expand_to_full_mesh_op_strategy,
        propagation._propagate_use_strided_shard_flag,
    )
    patched.enter_context(mock.patch.object(propagation, "_expand_single_dim_strategy_to_mesh", lists.begin))
    patched.enter_context(mock.patch.object(utils, "expand_to_full_mesh_op_strategy", lists.expand))
    patched.enter_context(mock.patch.object(propagation, "_propagate_use_strided_shard_flag", lists.complete))


def _joining(real: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    known: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def joined(meshes: list[Any]) -> Any:
        key = tuple(map(id, meshes))
        if key not in known:
            # The meshes are kept too, or others could come to lie where they were.
            known[key] = (list(meshes), real(meshes))
        return known[key][1]

    return joined


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


class _Lists:
    """The operators on lists of tensors, one at a time: tensors that are laid out alike share one answer."""

    def __init__(self, begin: Callable[..., Any], expand: Callable[..., Any], complete: Callable[..., Any]) -> None:
        self._begin, self._expand, self._complete = begin, expand, complete
        self._known: dict[tuple[Any, ...], Any] = {}
        self._completed: dict[int, Any] = {}

    def begin(self, *arguments: Any) -> Any:
        """The next operator begins. What torch does to an answer afterwards hinges on all of the list."""
        self._known.clear()
        self._completed.clear()
        return self._begin(*arguments)

    def expand(self, mesh: Any, op_schema: Any, strategies: Any, **named: Any) -> Any:
        key = _key(mesh, op_schema, strategies, named)
        if key is None:
            return self._expand(mesh, op_schema, strategies, **named)
        if key not in self._known:
            self._known[key] = self._expand(mesh, op_schema, strategies, **named)
        return self._known[key]

    def complete(self, op_strategy: Any, op_schema: Any) -> None:
        if id(op_strategy) not in self._completed:
            self._completed[id(op_strategy)] = op_strategy
            self._complete(op_strategy, op_schema)


def _key(mesh: Any, op_schema: Any, strategies: Any, named: dict[str, Any]) -> tuple[Any, ...] | None:
    """All that the answer hinges on; None where it is not plain."""
    taken = (*op_schema.args_strategy, *op_schema.kwargs_strategy)
    if any(len(each.strategies) != 1 for each in taken):
        return None
    specs = tuple((each.strategies[0].output_spec, _strided(each.strategies[0].output_spec)) for each in taken)
    rest = tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(named.items()))
    key = (id(mesh), op_schema.op, specs, tuple(map(tuple, strategies)), rest)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _strided(spec: Any) -> Any:
    return getattr(spec, "use_strided_shard_as_shard_order", None)
