"""Phases and iterations that follow from what a program was seen to do, and when enough of it was seen."""

from __future__ import annotations

import pytest

from planner.events import Phase
from planner.running.moments import Kind, Moments
from planner.running.stopping import MOST, Stopping

LETTERS = {"f": Kind.FORWARD, "e": Kind.EVAL, "b": Kind.BACKWARD, "s": Kind.SAVE, "l": Kind.LOAD}


def seen(told: str) -> Moments:
    """One letter a moment, each at the next position; a digit is a step of that optimizer."""
    found = Moments()
    for position, letter in enumerate(told):
        if letter.isdigit():
            found.add(position, Kind.STEP, int(letter))
            found.add(position, Kind.STEPPED, int(letter))
        else:
            found.add(position, LETTERS[letter])
    return found


def phases(told: str) -> list[tuple[str, int]]:
    return [(phase.value, iteration) for _, phase, iteration in seen(told).phases()]


def test_a_step_ends_an_iteration() -> None:
    assert phases("fb1fb1") == [
        ("forward", 1), ("backward", 1), ("optimizer_step", 1), ("forward", 2), ("backward", 2), ("optimizer_step", 2),
    ]  # fmt: skip


def test_micro_batches_are_of_one_iteration() -> None:
    assert phases("fbfb1") == [("forward", 1), ("backward", 1)] * 2 + [("optimizer_step", 1)]


def test_two_optimizers_make_one_iteration() -> None:
    assert [iteration for _, iteration in phases("fb1fb2fb1fb2")] == [1] * 6 + [2] * 6
    assert seen("fb1fb2fb1fb2").iterations == 2


def test_an_optimizer_that_steps_more_often_than_another_counts() -> None:
    assert seen("fb1fb1fb2fb1").iterations == 3


def test_an_evaluation_belongs_to_the_iteration_before_it() -> None:
    assert phases("efb1e")[0] == ("eval", 0)
    assert phases("efb1e")[-1] == ("eval", 1)


def test_the_first_iteration_is_over_when_the_second_begins_to_step() -> None:
    assert [seen(told).iterations for told in ("fb", "fb1", "fb1fb", "fb1fb1")] == [0, 0, 0, 2]


def test_what_follows_the_last_iteration_until_the_next_forward_belongs_to_it() -> None:
    found = seen("fb1fb1esfb1")

    assert found.end_of(2) == 8
    assert (found.seen(Kind.EVAL, 8), found.seen(Kind.SAVE, 8), found.seen(Kind.SAVE, 6)) == (1, 1, 0)


def test_a_program_that_goes_no_further_has_no_end() -> None:
    assert seen("fb1").end_of(1) is None


def test_a_checkpoint_that_is_loaded_is_a_phase() -> None:
    assert (Phase.CHECKPOINT_LOAD.value, 1) in phases("fb1lfb1")


@pytest.mark.parametrize(
    ("peaks", "ended_at"),
    [
        ([(1, 1), (2, 2), (2, 2)], 3),
        ([(2, 2), (2, 2), (2, 2)], 3),
        ([(1, 1), (2, 2), (3, 3), (3, 4), (3, 4)], 5),
    ],
)
def test_it_is_over_when_an_iteration_changes_no_peak(peaks: list[tuple[int, int]], ended_at: int) -> None:
    stopping = Stopping()

    over = [stopping.is_over(number, each) for number, each in enumerate(peaks, 1)]

    assert over == [number == ended_at for number in range(1, len(peaks) + 1)]


def test_each_iteration_is_looked_at_once() -> None:
    stopping = Stopping()

    assert [stopping.is_over(number, (1, 1)) for number in (1, 1, 2, 2, 3)] == [False] * 4 + [True]


def test_steps_that_were_asked_for_are_taken_whatever_the_peak() -> None:
    stopping = Stopping(steps=5)

    assert [stopping.is_over(number, (1, 1)) for number in range(1, 6)] == [False] * 4 + [True]


def test_a_peak_that_rises_for_ever_is_said() -> None:
    stopping = Stopping()

    over = [stopping.is_over(number, (number, number)) for number in range(1, MOST + 1)]

    assert over == [False] * (MOST - 1) + [True]
    assert stopping.reason == f"ended after {MOST} iterations, although its peak still rises"
