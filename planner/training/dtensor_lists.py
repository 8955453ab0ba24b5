"""Works out how operators on lists of DTensors are sharded by groups of tensors that are laid out alike.

torch 2.13 asks for each tensor of a list (`_foreach_`, `_fused_`) which placements there are and what each costs
(distributed/tensor/_sharding_prop.py), a millisecond for each parameter. Tensors at two places of the lists that are
equal have equal answers, so one of each kind is asked for, by torch's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

_LIST_OPERATORS = ("aten::_foreach_", "aten::_fused_")


def by_groups(real: Callable[..., Any]) -> Callable[..., Any]:
    """OpDispatcher's way to the sharding of an operator, for one tensor of each kind in its lists."""

    def propagate(dispatcher: Any, op: Any, args: Any, kwargs: Any, op_info: Any, *rest: Any) -> Any:
        groups = _groups_of(op, op_info.schema)
        if groups is None:
            return real(dispatcher, op, args, kwargs, op_info, *rest)
        schema = groups.shortened(op_info.schema)
        return groups.lengthened(real(dispatcher, op, args, kwargs, replace(op_info, schema=schema), *rest))

    return propagate


@dataclass(frozen=True, slots=True)
class _Groups:
    """Which places of the lists are alike: the first place of each group, and the group of each place."""

    firsts: tuple[int, ...]
    group_at: tuple[int, ...]

    def shortened(self, schema: Any) -> Any:
        arguments = tuple(
            type(each)(each[place] for place in self.firsts) if _is_list(each) and each else each
            for each in schema.args_schema
        )
        return type(schema)(schema.op, arguments, schema.kwargs_schema, schema.schema_info)

    def lengthened(self, sharding: Any) -> Any:
        """The answer for the whole lists. Its specs are shared, as those are that torch keeps for equal operators."""
        schema = sharding.redistribute_schema
        if schema is not None:
            arguments = tuple(self._whole(each) for each in schema.args_schema)
            schema = type(schema)(schema.op, arguments, schema.kwargs_schema, schema.schema_info)
        return replace(sharding, output_spec=self._whole(sharding.output_spec), redistribute_schema=schema)

    def _whole(self, value: Any) -> Any:
        if not _is_list(value) or not value:
            return value
        return type(value)(value[group] for group in self.group_at)


def _groups_of(op: Any, schema: Any) -> _Groups | None:
    """None where there is nothing to group, or something that is not one list beside another."""
    if schema is None or not op.name().startswith(_LIST_OPERATORS):
        return None
    lists = [each for each in schema.args_schema if _is_list(each) and each]
    if not lists or len({len(each) for each in lists}) > 1 or any(map(_is_list, schema.kwargs_schema.values())):
        return None
    keys = [tuple(map(_key, column)) for column in zip(*lists, strict=True)]
    if any(None in key for key in keys):
        return None
    known: dict[tuple[Any, ...], int] = {}
    group_at = tuple(known.setdefault(key, len(known)) for key in keys)
    if len(known) == len(keys):
        return None
    return _Groups(tuple(group_at.index(group) for group in range(len(known))), group_at)


def _is_list(value: Any) -> bool:
    return type(value) in (list, tuple)


def _key(value: Any) -> Any:
    """All that the answer for a value of a list hinges on; None for what is no tensor laid out on a mesh."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    if not isinstance(value, DTensorSpec) or value.tensor_meta is None:
        return None
    return (value, getattr(value, "use_strided_shard_as_shard_order", None))
