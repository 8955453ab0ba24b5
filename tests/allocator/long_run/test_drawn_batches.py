"""The run over all batches, composed of the steps that were run, does for the allocator what the whole run does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from planner.allocator.long_runs.drawn_batches import CannotComposeError, Extents, compose_batches
from planner.allocator.long_runs.stretches import saturated_rule_of
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.events import Alloc, Event, Free, Mark, Origin, Phase
from planner.units import KIB, MIB

Sizes = Callable[[Extents], Sequence[int]]
SEEN = 24


class Program:
    """Takes each batch to the GPU at the end of the step before; `sizes` are those of its activations."""

    def __init__(self, sizes: Sizes, accumulated: int = 1, keeps: int = 0) -> None:
        self._sizes, self._accumulated, self._keeps = sizes, accumulated, keeps
        self.events: list[Event] = []
        self._blocks = 0

    def _alloc(self, size: int, op: str) -> int:
        self._blocks += 1
        self.events.append(Alloc(self._blocks, size, 0, Origin(op)))
        return self._blocks

    def _free(self, block: int) -> None:
        self.events.append(Free(block))

    def run(self, batches: Sequence[Extents]) -> list[Event]:
        gradient, state, kept, iteration = 0, 0, list[int](), 1
        parameter = self._alloc(5 * MIB, "parameter")
        held = self._alloc(64 * batches[0][0], "batch")
        for number, (own, following) in enumerate(pairwise((*batches, batches[-1])), 1):
            self.events.append(Mark(Phase.FORWARD, iteration))
            activations = [self._alloc(size, "activation") for size in self._sizes(own)]
            self.events.append(Mark(Phase.BACKWARD, iteration))
            before, gradient = gradient, self._alloc(5 * MIB, "gradient")
            for block in (*reversed(activations), *([before] if before else [])):
                self._free(block)
            if self._keeps:
                kept.append(self._alloc(512, "loss"))
            if self._keeps and number % self._keeps == 0:
                while kept:
                    self._free(kept.pop())
            if number % self._accumulated == 0:
                self.events.append(Mark(Phase.OPTIMIZER_STEP, iteration))
                state = state or self._alloc(10 * MIB, "state")
                self._free(gradient)
                gradient, iteration = 0, iteration + 1
            replaced, held = held, self._alloc(64 * following[0], "batch")
            self._free(replaced)
        self.events.append(Mark(Phase.FORWARD, iteration))
        assert parameter < state
        return self.events


def draw(seed: int, ways: int = 1, number: int = 300) -> list[Extents]:
    chance = random.Random(seed)
    return [tuple(max(16, int(chance.lognormvariate(6, 0.7))) for _ in range(ways)) for _ in range(number)]


def largest_early(order: Sequence[Extents]) -> list[Extents]:
    largest = [max(order, key=lambda batch: batch[way]) for way in range(len(order[0]))]
    return [*order[:8], *largest, *largest, *order[8:SEEN]]


def linear(batch: Extents) -> list[int]:
    return [4 * KIB * batch[0] + 100, 3 * KIB * batch[0], 7 * KIB * (batch[0] - 1)]


def padded(batch: Extents) -> list[int]:
    return [4 * KIB * (-(-batch[0] // 32) * 32), 16 * batch[0] * (-(-batch[0] // 16) * 16), 3 * KIB * batch[0]]


def saturated(batch: Extents) -> list[int]:
    return [min(16 * KIB * batch[0], 12 * MIB), 2 * KIB * batch[0]]


def other_when_long(batch: Extents) -> list[int]:
    return [4 * KIB * batch[0], *([2 * KIB * batch[0]] if batch[0] > 400 else []), 3 * KIB * batch[0]]


def product(batch: Extents) -> list[int]:
    return [4 * KIB * batch[0], 32 * batch[0] * batch[1], KIB * batch[1]]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize(
    ("sizes", "ways", "accumulated", "keeps"),
    [
        (linear, 1, 1, 0),
        (padded, 1, 1, 0),
        (saturated, 1, 1, 0),
        (other_when_long, 1, 1, 0),
        (product, 2, 1, 0),
        (linear, 1, 3, 0),
        (linear, 1, 1, 5),
    ],
    ids=["linear", "padded", "saturated", "another step when long", "two extents", "accumulated", "kept for a while"],
)
def test_a_composed_run_reserves_what_the_whole_run_does(
    sizes: Sizes, ways: int, accumulated: int, keeps: int, conf: str
) -> None:
    order, rules = draw(5, ways), Rules.from_conf(conf)
    given = largest_early(order)

    composed = compose_batches(Program(sizes, accumulated, keeps).run(given), [*given, given[-1]], order)

    whole = replay(Program(sizes, accumulated, keeps).run(order), rules)
    found = composed.replay(rules)
    assert found.peak_reserved_bytes == whole.peak_reserved_bytes
    assert max(found.allocated_bytes) == pytest.approx(whole.peak_allocated_bytes, abs=keeps * 512)
    assert len(found.allocated_bytes) == len(order) // accumulated


def test_no_more_steps_are_composed_than_the_program_runs() -> None:
    order = draw(5)
    given = largest_early(order)

    composed = compose_batches(Program(linear).run(given), [*given, given[-1]], order, most_steps=100)

    assert len(composed.replay(Rules()).allocated_bytes) == 100


def by_chance(_: Extents, chance: random.Random = random.Random(1)) -> list[int]:  # noqa: B008
    return [chance.randrange(MIB, 90 * MIB)]


@pytest.mark.parametrize(
    ("sizes", "given", "order", "why"),
    [
        (by_chance, draw(5)[:SEEN], draw(5), "sizes of blocks do not follow from those of batches"),
        (linear, draw(5)[:4], draw(5), "2 steps were run that are like all others"),
        (linear, draw(5)[:SEEN], [*draw(5), (99_999,)], "larger batches come than were run"),
        (linear, draw(5, 7)[:SEEN], draw(5, 7), "batches vary in 7 ways"),
    ],
    ids=["by chance", "few", "larger", "many extents"],
)
def test_steps_that_say_nothing_of_others_are_not_composed(
    sizes: Sizes, given: list[Extents], order: list[Extents], why: str
) -> None:
    with pytest.raises(CannotComposeError) as refused:
        compose_batches(Program(sizes).run(given), [*given, given[-1]], order)

    assert str(refused.value) == why


def test_batches_that_are_not_used_one_by_one_are_not_composed() -> None:
    order = draw(5)

    with pytest.raises(CannotComposeError, match="its batches are not used one by one"):
        compose_batches(Program(linear).run(order[:SEEN]), order[: SEEN // 2], order)


def test_sizes_rise_until_a_gpu_runs_no_more_parts_at_a_time() -> None:
    rule = saturated_rule_of([10, 20, 30, 50, 80, 90], [100, 200, 300, 500, 700, 700])

    assert rule is not None
    assert [rule.at(length) for length in (40, 69, 71, 900)] == [400, 690, 700, 700]
    assert saturated_rule_of([10, 20, 30, 50, 80], [100, 250, 300, 500, 700]) is None


def with_bucket(events: Sequence[Event], until: int) -> list[Event]:
    """With a block of the first step that waits until this iteration."""
    bucket = 1_000_000
    start = next(index for index, event in enumerate(events) if isinstance(event, Mark) and event.iteration == until)
    return [Alloc(bucket, 40 * MIB, 0, Origin("bucket")), *events[:start], Free(bucket), *events[start:]]


def test_what_the_first_steps_leave_for_a_while_is_given_up_at_their_end() -> None:
    order = draw(5)
    given = largest_early(order)
    events = Program(linear).run(given)

    waits, never_waits = (
        compose_batches(with_bucket(events, until), [*given, given[-1]], order).replay(Rules()) for until in (9, 3)
    )

    assert (waits.allocated_bytes[2:], waits.peak_reserved_bytes) == (
        never_waits.allocated_bytes[2:],
        never_waits.peak_reserved_bytes,
    )
