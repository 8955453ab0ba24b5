"""Reads the shapes of batches, and follows those that a program's outermost forwards are given."""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from planner.tracing.program.assumptions import current_frame, program_place
from planner.tracing.program.batch_sizes import Shape, Shapes, VaryingSize, varying

_DEEPEST, _MOST_PARTS = 4, 4096
"""Of a batch: how deep its tensors lie, and how many parts are looked at of one."""


def read_shapes(batch: Any) -> dict[str, Shape]:
    """The shape of each entry that holds tensors. Several of one entry are as large as if they were padded to the
    largest of them, since a model that takes a list pads it; where that cannot be, they are all of their elements."""
    return {name: shape for name, entry in _list_entries(batch) if (shape := _merge_shapes(entry))}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a model in the program: one line may hold several (`criterion(model(x), y)`), and one instruction
    calls several models where it stands in a loop."""

    module: int
    code: CodeType | None
    instruction: int
    place: str


class InputSizes:
    """Of one program; `tells` hears the shapes of each outermost forward, and whether it is a part of
    training (it makes gradients possible)."""

    def __init__(self, tells: Callable[[Shapes, bool], None], causes: Callable[[], Hashable] = tuple) -> None:
        """`causes`: what the program's own lines say just now on which shapes hang."""
        self._tells, self._causes = tells, causes
        self._seen: defaultdict[tuple[_Call, Hashable], dict[tuple[tuple[str, Shape], ...], None]] = defaultdict(dict)
        """By the call of a model for training, and causes: the shapes of its inputs, each once, in order."""
        self._modules = WeakIdKeyDictionary()
        self._next = count()

    def take(self, module: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        names = _parameter_names(type(module).forward)
        given = {names[at] if at < len(names) else f"input {at}": value for at, value in enumerate(arguments)}
        shapes = read_shapes({**given, **named})
        is_trained = torch.is_grad_enabled()
        if is_trained:
            self._seen[self._call_of(module), self._causes()].setdefault(tuple(shapes.items()))
        self._tells(shapes, is_trained)

    def _call_of(self, module: nn.Module) -> _Call:
        if module not in self._modules:
            self._modules[module] = next(self._next)
        frame, number = current_frame(), self._modules[module]
        if frame is None:
            return _Call(number, None, 0, "")
        return _Call(number, frame.f_code, frame.f_lasti, program_place([frame]))

    def forget(self) -> None:
        """What came so far was to warm up."""
        self._seen.clear()

    def varying(self, *, uncaused: bool = False) -> VaryingSize | None:
        """The input of the most elements that was not always as large; with `uncaused` where nothing else differs."""
        seen: defaultdict[tuple[_Call, Hashable], list[Shapes]] = defaultdict(list)
        for (call, causes), shapes in self._seen.items():
            seen[call, causes if uncaused else ()] += map(dict, shapes)
        found = [varying(shapes, call.place) for (call, _), shapes in seen.items()]
        return max(filter(None, found), key=lambda size: size.different, default=None)


@cache
def _parameter_names(forward: Callable[..., Any]) -> list[str]:
    parameters = [*inspect.signature(forward).parameters.values()][1:]
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]


def _list_entries(batch: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(batch, Tensor):
        yield "", batch
    else:
        yield from ((str(key), part) for key, part in _split_batch(batch))


def _merge_shapes(entry: Any) -> Shape:
    shapes = [shape for shape in _walk_shapes(entry) if shape]
    if len(shapes) < 2:
        return shapes[0] if shapes else ()
    if len({len(shape) for shape in shapes}) == 1:
        return (len(shapes), *map(max, *shapes))
    return (sum(map(math.prod, shapes)),)


def _walk_shapes(value: Any, depth: int = 0) -> Iterator[Shape]:
    if isinstance(value, Tensor):
        yield tuple(value.shape)
    elif depth < _DEEPEST:
        for _, part in _split_batch(value):
            yield from _walk_shapes(part, depth + 1)


def _split_batch(value: Any) -> Iterator[tuple[Any, Any]]:
    """Of a mapping, a sequence, or an object that holds tensors (a batch of a library's own class)."""
    if isinstance(value, Mapping):
        yield from islice(value.items(), _MOST_PARTS)
    elif isinstance(value, list | tuple):
        yield from islice(enumerate(value), _MOST_PARTS)
    elif not callable(value):
        yield from getattr(value, "__dict__", {}).items()
