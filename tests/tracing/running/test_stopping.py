"""When enough of a program was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.tracing.program.stopping import MOST, Progress, Stopping


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def impatient(**options: float) -> Stopping:
    return Stopping(patience_seconds=0.0, **options)  # type: ignore[arg-type]


def over(stopping: Stopping, peaks: list[tuple[int, int]]) -> list[int]:
    """After which iterations it is over."""
    return [
        number
        for number, each in enumerate(peaks, 1)
        if stopping.is_over(Progress(iterations=number), lambda each=each: each)  # type: ignore[misc]
    ]


@pytest.mark.parametrize(
    ("peaks", "ended_at"),
    [
        ([(1, 1), (2, 2), (2, 2)], 3),
        ([(2, 2), (2, 2), (2, 2)], 3),
        ([(1, 1), (2, 2), (3, 3), (3, 4), (3, 4)], 5),
    ],
)
def test_it_is_steady_when_an_iteration_changes_no_peak(peaks: list[tuple[int, int]], ended_at: int) -> None:
    assert over(impatient(), peaks) == [ended_at]


def test_each_iteration_is_looked_at_once() -> None:
    stopping = impatient()

    ends = [stopping.is_over(Progress(iterations=number), lambda: (1, 1)) for number in (1, 1, 2, 2, 3)]

    assert ends == [False] * 4 + [True]


def test_steps_that_were_asked_for_are_taken_whatever_the_peak() -> None:
    assert over(Stopping(steps=5), [(1, 1)] * 5) == [5]


def test_a_peak_that_rises_for_ever_is_said() -> None:
    stopping = impatient()

    assert over(stopping, [(number, number) for number in range(1, MOST + 1)]) == [MOST]
    assert stopping.reason == f"ended after {MOST} iterations, although its peak still rises"


@pytest.fixture
def worked() -> Clock:
    return Clock()


def steady(worked: Clock, patience: float | None, seconds: float = 1e9) -> Stopping:
    """After the third iteration, which was over after 8 s."""
    stopping = Stopping(patience_seconds=patience, seconds=seconds, worked=worked, passed=worked)
    for number in (1, 2, 3):
        worked.now = 8.0 if number == 3 else 1.0
        assert not stopping.is_over(Progress(iterations=number), lambda: (1, 1))
    return stopping


@pytest.mark.parametrize(
    ("seen", "enough"),
    [
        (Progress(iterations=4, evaluations=2, checkpoints=1), True),
        (Progress(iterations=4, evaluations=1, checkpoints=1), False),
        (Progress(iterations=4, evaluations=2), False),
        (Progress(iterations=4, evaluations=2, checkpoints=1, idle=1), False),
    ],
)
def test_two_evaluations_a_checkpoint_and_every_optimizer_are_waited_for(
    worked: Clock, seen: Progress, *, enough: bool
) -> None:
    assert steady(worked, 10.0).is_over(seen, lambda: (1, 1)) == enough


def ends_after(stopping: Stopping, worked: Clock, seen: Progress, *, evaluates: bool = False) -> float:
    """For how many seconds it goes on without anything new."""
    stopping.is_over(seen, lambda: (1, 1))
    began = worked.now
    while not stopping.is_out_of_patience(seen, evaluates=evaluates):
        worked.now += 1.0
    return worked.now - began


def iterations_after(stopping: Stopping, seen: Progress, worked: Clock, seconds: float = 0.0) -> int:
    """How many more iterations of so many seconds it does after this one without anything new."""
    now = seen
    while not stopping.is_over(now, lambda: (1, 1)):
        now, worked.now = replace(now, iterations=now.iterations + 1), worked.now + seconds
    return now.iterations - seen.iterations


@pytest.mark.parametrize(("steady_at", "waited"), [(3, 6), (7, 14)])
def test_a_steady_program_is_watched_for_twice_the_iterations_that_it_took(
    worked: Clock, steady_at: int, waited: int
) -> None:
    stopping = Stopping(worked=worked)
    rising = [(number, number) for number in range(1, steady_at)]

    assert over(stopping, rising + rising[-1:] * (1 + waited)) == [steady_at + waited]
    assert stopping.reason.startswith(
        f"ended after {steady_at + waited} iterations: its peak has not risen since iteration"
    )
    assert f"nothing new came in {waited} iterations (--patience" in stopping.reason


def test_iterations_that_take_long_are_watched_for_a_minute(worked: Clock) -> None:
    assert iterations_after(steady(worked, None), Progress(iterations=3), worked, seconds=25.0) == 3


def test_patience_that_was_asked_for_is_kept_whatever_the_iterations(worked: Clock) -> None:
    stopping = steady(worked, 20.0)

    assert iterations_after(stopping, Progress(iterations=4), worked, seconds=0.1) == 200
    assert stopping.reason.endswith("its peak has not risen since iteration 2, and nothing new came in 20 s")


def test_who_evaluated_at_its_start_is_not_waited_for_longer(worked: Clock) -> None:
    stopping = Stopping(worked=worked)

    ends = [
        number
        for number in range(1, 30)
        if stopping.is_over(Progress(iterations=number, evaluations=1), lambda: (1, 1))
    ]

    assert ends[0] == 3 + 2 * 3


def test_an_evaluation_at_work_is_waited_for(worked: Clock) -> None:
    assert ends_after(steady(worked, None), worked, Progress(iterations=4), evaluates=True) == 15 * 8


def test_what_is_new_makes_it_worth_to_wait_again(worked: Clock) -> None:
    stopping = steady(worked, None)
    assert not stopping.is_over(Progress(iterations=8), lambda: (1, 1))
    assert not stopping.is_over(Progress(iterations=9, checkpoints=1), lambda: (1, 1))

    assert iterations_after(stopping, Progress(iterations=9, checkpoints=1), worked) == 6


def test_what_was_seen_before_is_not_new(worked: Clock) -> None:
    """Checkpoints, say, and optimizers that are made for every batch."""
    stopping = steady(worked, None)

    ends = [
        number
        for number in range(4, 40)
        if stopping.is_over(Progress(iterations=number, checkpoints=number, idle=number % 2), lambda: (1, 1))
    ]

    assert ends[0] == 4 + 6


def test_a_rank_has_time_left_to_write_down_what_it_did(worked: Clock) -> None:
    assert (
        ends_after(steady(worked, None, seconds=20.0), worked, Progress(iterations=4), evaluates=True) == 0.7 * 20 - 8
    )
