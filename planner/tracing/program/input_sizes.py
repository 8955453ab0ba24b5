"""Reads the shapes of batches, and follows those that a program's outermost forwards are given."""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby, islice
from types import CodeType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from planner.tracing.batch_sizes import Shape, Shapes, VaryingSize, varying
from planner.tracing.program.assumptions import current_frame, program_place

_DEEPEST, _MOST_PARTS = 4, 4096
"""Of a batch: how deep its tensors lie, and how many parts are looked at of one."""


def read_shapes(batch: Any) -> dict[str, Shape]:
    """The shape of each entry that holds tensors. Several of one entry are as large as if they were padded to the
    largest of them, since a model that takes a list pads it; where that cannot be, they are all of their elements."""
    return {name: shape for name, entry in _list_entries(batch) if (shape := _merge_shapes(entry))}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a model is called: one line may hold several calls (`criterion(model(x), y)`)."""

    model: type
    code: CodeType | None
    instruction: int
    line: str


Causes = tuple[tuple[int, float], ...]
"""What the program's own lines say just now on which shapes hang, by the number of each."""
_Given = tuple[Causes, tuple[tuple[str, Shape], ...]]
"""Causes, and the shapes of inputs."""


class InputSizes:
    """Of one program: what each of its models is given at each place, step by step, where it is a part of training (it
    makes gradients possible). `tells` hears the shapes of each outermost forward, and whether it is such a part."""

    def __init__(
        self, tells: Callable[[Shapes, bool], None], step: Callable[[], int], causes: Callable[[], Causes] = tuple
    ) -> None:
        """`step`: the number of the one that goes on."""
        self._tells, self._step, self._causes = tells, step, causes
        self._models: defaultdict[_Place, list[ref[nn.Module]]] = defaultdict(list)
        """A model that a program makes anew has the number of one that it has dropped."""
        self._seen: defaultdict[tuple[_Place, int], defaultdict[int, dict[_Given, None]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        """By place and the model's number, of each step."""

    def take(
        self, module: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any], *, allocates: bool = True
    ) -> None:
        """A forward has ended. One that neither `allocates` on the GPU nor is given what lies there decides nothing."""
        names = _parameter_names(type(module).forward)
        given = {names[at] if at < len(names) else f"input {at}": value for at, value in enumerate(arguments)}
        given |= named
        shapes, is_trained = read_shapes(given), torch.is_grad_enabled()
        if is_trained and (allocates or any(tensor.is_cuda for tensor in _walk_tensors(given))):
            place = _find_place(module)
            steps = self._seen[place, self._number(module, self._models[place])]
            steps[self._step()].setdefault((self._causes(), tuple(shapes.items())))
        self._tells(shapes, is_trained)

    def _number(self, module: nn.Module, models: list[ref[nn.Module]]) -> int:
        living = [model() for model in models]
        free = living.index(None) if None in living else len(living)
        number = next((at for at, model in enumerate(living) if model is module), free)
        models[number : number + 1] = [ref(module)]
        return number

    def forget(self) -> None:
        """What came so far was to warm up."""
        self._seen.clear()

    def varying(self, *, uncaused: bool = False) -> VaryingSize | None:
        """The input of the most shapes whose sizes are not the same in every step; with `uncaused` where what the
        lines say does not explain it."""
        found = []
        for (place, _), steps in self._seen.items():
            size = varying([[dict(shapes) for _, shapes in step] for step in steps.values()], place.line)
            if size is not None and not (uncaused and _explains(steps.values())):
                found.append(size)
        return max(found, key=lambda size: size.different, default=None)


def _explains(steps: Iterable[Iterable[_Given]]) -> bool:
    """Whether sizes are the same wherever the lines say the same; where they say it in one step only, sizes grow or
    shrink with what one of them says, or all together."""
    seen: defaultdict[Causes, list[list[Shapes]]] = defaultdict(list)
    for step in steps:
        for causes, each in groupby(step, key=lambda given: given[0]):
            seen[causes].append([dict(shapes) for _, shapes in each])
    if any(varying(each) for each in seen.values()):
        return False
    if all(len(each) > 1 for each in seen.values()):
        return True
    sizes = [max(math.prod(shape) for shapes in each[0] for shape in shapes.values()) for each in seen.values()]
    said = [{**dict(causes), "all": math.prod(value for _, value in causes)} for causes in seen]
    return any(_follows([each.get(line, 0) for each in said], sizes) for line in dict.fromkeys(chain(*said)))


def _follows(values: Iterable[float], sizes: Iterable[int]) -> bool:
    pairs = sorted({*zip(values, sizes, strict=True)})
    ordered = [size for _, size in pairs]
    return len(dict(pairs)) == len(pairs) and ordered in (sorted(ordered), sorted(ordered, reverse=True))


def _find_place(module: nn.Module) -> _Place:
    frame = current_frame()
    if frame is None:
        return _Place(type(module), None, 0, "")
    return _Place(type(module), frame.f_code, frame.f_lasti, program_place([frame]))


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
    shapes = [tuple(tensor.shape) for tensor in _walk_tensors(entry) if tensor.dim()]
    if len(shapes) < 2:
        return shapes[0] if shapes else ()
    if len({len(shape) for shape in shapes}) == 1:
        return (len(shapes), *map(max, *shapes))
    return (sum(map(math.prod, shapes)),)


def _walk_tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth < _DEEPEST:
        for _, part in _split_batch(value):
            yield from _walk_tensors(part, depth + 1)


def _split_batch(value: Any) -> Iterator[tuple[Any, Any]]:
    """Of a mapping, a sequence, or an object that holds tensors (a batch of a library's own class)."""
    if isinstance(value, Mapping):
        yield from islice(value.items(), _MOST_PARTS)
    elif isinstance(value, list | tuple):
        yield from islice(enumerate(value), _MOST_PARTS)
    elif not callable(value):
        yield from getattr(value, "__dict__", {}).items()
