"""All ways to divide a number of GPUs over the axes of parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.job.axes import AXES


def layouts(gpus: int, fixed: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Degrees of every axis whose product is `gpus`; of a `fixed` axis only the degrees that it allows."""
    yield from _split(gpus, list(AXES), fixed)


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [each for each in range(1, number + 1) if number % each == 0] if number < 10_000 else _many(number)


def _many(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _split(gpus: int, axes: list[str], fixed: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    if not axes:
        if gpus == 1:
            yield {}
        return
    axis, *others = axes
    for degree in divisors(gpus):
        if axis not in fixed or degree in fixed[axis]:
            yield from ({axis: degree, **rest} for rest in _split(gpus // degree, others, fixed))
