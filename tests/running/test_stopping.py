"""When enough of a program was seen."""

from __future__ import annotations

import pytest

from planner.running.stopping import MOST, Seen, Stopping


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
        if stopping.is_over(Seen(iterations=number), lambda each=each: each)  # type: ignore[misc]
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

    ends = [stopping.is_over(Seen(iterations=number), lambda: (1, 1)) for number in (1, 1, 2, 2, 3)]

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
        assert not stopping.is_over(Seen(iterations=number), lambda: (1, 1))
    return stopping


@pytest.mark.parametrize(
    ("seen", "enough"),
    [
        (Seen(iterations=4, evaluations=2, checkpoints=1), True),
        (Seen(iterations=4, evaluations=1, checkpoints=1), False),
        (Seen(iterations=4, evaluations=2), False),
        (Seen(iterations=4, evaluations=2, checkpoints=1, idle=1), False),
    ],
)
def test_two_evaluations_a_checkpoint_and_every_optimizer_are_waited_for(
    worked: Clock, seen: Seen, *, enough: bool
) -> None:
    assert steady(worked, 10.0).is_over(seen, lambda: (1, 1)) == enough


def ends_after(stopping: Stopping, worked: Clock, seen: Seen, *, evaluates: bool = False) -> float:
    """For how many seconds it goes on without anything new."""
    stopping.is_over(seen, lambda: (1, 1))
    began = worked.now
    while not stopping.is_out_of_patience(seen, evaluates=evaluates):
        worked.now += 1.0
    return worked.now - began


@pytest.mark.parametrize(("patience", "waited"), [(None, 8.0), (20.0, 20.0)])
def test_a_steady_program_is_watched_as_long_again(worked: Clock, patience: float | None, waited: float) -> None:
    stopping = steady(worked, patience)

    assert ends_after(stopping, worked, Seen(iterations=4)) == waited
    assert stopping.reason.endswith(f"training is steady since iteration 3, and nothing new came in {waited:.0f} s")


def test_the_second_evaluation_is_waited_for_much_longer(worked: Clock) -> None:
    assert ends_after(steady(worked, None), worked, Seen(iterations=4, evaluations=1)) == 15 * 8
    assert ends_after(steady(worked, 60.0), worked, Seen(iterations=4, evaluations=1)) == 300


def test_an_evaluation_at_work_is_waited_for(worked: Clock) -> None:
    assert ends_after(steady(worked, None), worked, Seen(iterations=4), evaluates=True) == 15 * 8


def test_what_is_new_makes_it_worth_to_wait_again(worked: Clock) -> None:
    stopping = steady(worked, 10.0)
    assert ends_after(stopping, worked, Seen(iterations=4)) == 10

    assert not stopping.is_over(Seen(iterations=5, checkpoints=1), lambda: (1, 1))
    assert ends_after(stopping, worked, Seen(iterations=5, checkpoints=1)) == 10


def test_a_rank_has_time_left_to_write_down_what_it_did(worked: Clock) -> None:
    assert ends_after(steady(worked, None, seconds=20.0), worked, Seen(iterations=4, evaluations=1)) == 0.7 * 20 - 8
