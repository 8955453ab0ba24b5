"""Which parts of a long evaluation are run on paper: those between them follow from these."""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.evaluation_schema import Eval

MOST_SHOWN = 8
"""Of equal parts; from the third on each does what the one before it did, with one more kept."""
_FIRST_ALIKE = 3
_NEVER_SHORTENED = 12
"""So many tokens are generated one by one."""


@dataclass(frozen=True, slots=True)
class Part:
    """An evaluation step, or the generation of some tokens at once: `number` is that of the last of them."""

    number: int
    count: int = 1
    alike: bool = False
    """Does what all parts with a higher number do, of which only some are shown."""


def shown_batches(spec: Eval) -> tuple[Part, ...]:
    """The evaluation steps that are run; without alike ones they are all."""
    every = batches_on_device(spec)
    if every <= MOST_SHOWN:
        return tuple(Part(number) for number in range(1, every + 1))
    return tuple(Part(number, alike=number >= _FIRST_ALIKE) for number in range(1, MOST_SHOWN + 1))


def batches_on_device(spec: Eval) -> int:
    """So many steps of an evaluation decide what it takes: what is gathered goes to the host after them, and the
    allocator's cache is emptied."""
    if not spec.gather:
        return 1
    return min(spec.batches, spec.accumulation_steps or spec.batches)


def shown_tokens(new_tokens: int) -> tuple[Part, ...]:
    """What is generated after the first token, which comes of the prompt itself: tokens one by one, and between some of
    them many at once, which grow the cache to where the next are shown."""
    last = new_tokens - 1
    if last <= _NEVER_SHORTENED:
        return tuple(Part(number) for number in range(1, last + 1))
    parts = [Part(1), Part(2), Part(3, alike=True)]
    for quarter in range(1, 5):
        shown, before = last * quarter // 4, parts[-1].number
        if shown - 2 > before:
            parts += [Part(shown - 2, shown - 2 - before), Part(shown - 1), Part(shown, alike=True)]
    return tuple(parts)
