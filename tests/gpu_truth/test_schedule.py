"""The schedule of the campaign, under a fake clock: the most valuable first, nothing begun that cannot end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_truth.schedule import Costs, GroupPlan, Schedule, Waiting, expect


@dataclass
class Run:
    """What happened: when each case was begun, and when the last one was over."""

    begun: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    together: list[frozenset[str]] = field(default_factory=list)


def simulate(
    cases: Sequence[Waiting],
    takes: Mapping[str, float],
    *,
    slots: int = 4,
    seconds: float = 540.0,
    guesses: Mapping[str, float] | None = None,
    cut_off_at: float = float("inf"),
) -> Run:
    """A run whose cases take what `takes` says, and are ended at the limit; cut off at any moment."""
    costs = Costs(guesses or {each.group: 10.0 for each in cases})
    schedule, run, now = Schedule(cases, costs, slots=slots, seconds=seconds), Run(), 0.0
    running: dict[str, tuple[Waiting, float, bool]] = {}
    while True:
        while (case := schedule.begin(now)) is not None:
            run.begun[case.name] = now
            is_whole = takes[case.name] <= schedule.left(now)
            running[case.name] = case, now + min(takes[case.name], schedule.left(now)), is_whole
            run.together.append(frozenset(running))
        if not running:
            return run
        name = min(running, key=lambda each: running[each][1])
        case, now, is_whole = running.pop(name)
        if now > cut_off_at:
            return run
        schedule.end(case, now - run.begun[name])
        if is_whole:
            run.ended[name] = now


def case(name: str, group: str = "steps", *, alone: bool = False) -> Waiting:
    return Waiting(name=name, group=group, alone=alone)


def test_the_most_valuable_are_begun_first() -> None:
    cases = [case(name) for name in "abcdef"]

    assert list(simulate(cases, dict.fromkeys("abcdef", 5.0), slots=2).begun) == list("abcdef")


def test_nothing_is_begun_that_is_expected_to_end_too_late_and_something_shorter_takes_its_place() -> None:
    cases = [case("first", "short"), case("long", "long"), case("second", "short")]
    run = simulate(cases, {"first": 5, "long": 40, "second": 5}, slots=1, seconds=30, guesses={"short": 5, "long": 40})

    assert run.begun == {"first": 0.0, "second": 5.0}


def test_what_a_case_takes_is_learnt_from_others_of_its_group() -> None:
    cases = [case(name) for name in "abc"]
    run = simulate(cases, dict.fromkeys("abc", 60.0), slots=1, seconds=100, guesses={"steps": 1.0})

    assert run.begun == {"a": 0.0}  # twice the 60 seconds of the first do not fit


def test_what_wants_the_device_for_itself_has_it_and_is_not_overtaken() -> None:
    cases = [case("a"), case("b"), case("whole", alone=True), case("c")]
    run = simulate(cases, {"a": 5, "b": 20, "whole": 10, "c": 5})

    assert run.begun == {"a": 0.0, "b": 0.0, "whole": 20.0, "c": 30.0}


def test_a_plan_says_how_long_each_group_takes() -> None:
    cases = [case("x", "alone", alone=True), case("y", "alone", alone=True), *(case(name) for name in "abcdef")]

    assert expect(cases, Costs({"alone": 10.0, "steps": 20.0}), slots=4) == (
        GroupPlan(name="alone", cases=2, seconds=20.0),
        GroupPlan(name="steps", cases=6, seconds=30.0),
    )


GROUPS = st.sampled_from(("database", "workspaces", "steps"))


@st.composite
def matrices(draw: st.DrawFn) -> tuple[list[Waiting], dict[str, float], dict[str, float]]:
    count = draw(st.integers(1, 30))
    cases = [case(f"case-{number}", draw(GROUPS), alone=draw(st.booleans())) for number in range(count)]
    takes = {each.name: draw(st.floats(0.1, 200.0)) for each in cases}
    guesses = {name: draw(st.floats(0.1, 100.0)) for name in ("database", "workspaces", "steps")}
    return cases, takes, guesses


@settings(max_examples=40)
@given(matrix=matrices(), slots=st.integers(1, 8), seconds=st.floats(0.0, 600.0))
def test_everything_is_over_in_time_and_nobody_shares_the_device_with_a_case_that_is_alone(
    matrix: tuple[list[Waiting], dict[str, float], dict[str, float]], slots: int, seconds: float
) -> None:
    cases, takes, guesses = matrix
    alone = {each.name for each in cases if each.alone}
    run = simulate(cases, takes, slots=slots, seconds=seconds, guesses=guesses)

    assert all(begun <= seconds for begun in run.begun.values())
    assert all(ended <= seconds + 1e-6 for ended in run.ended.values())
    assert all(len(each) <= slots and (len(each) == 1 or not each & alone) for each in run.together)


@settings(max_examples=40)
@given(matrix=matrices(), slots=st.integers(1, 8), cuts=st.lists(st.floats(0.0, 300.0), max_size=4))
def test_cut_off_at_any_moment_a_later_run_measures_the_rest_once(
    matrix: tuple[list[Waiting], dict[str, float], dict[str, float]], slots: int, cuts: list[float]
) -> None:
    left, takes, guesses = matrix
    measured: list[str] = []
    for cut in (*cuts, float("inf")):
        run = simulate(left, takes, slots=slots, seconds=1e9, guesses=guesses, cut_off_at=cut)
        measured += run.ended
        left = [each for each in left if each.name not in run.ended]

    assert sorted(measured) == sorted(takes)


@settings(max_examples=40)
@given(matrix=matrices(), slots=st.integers(1, 8), seconds=st.floats(0.0, 600.0))
def test_a_case_is_only_overtaken_by_one_that_fits_where_it_does_not(
    matrix: tuple[list[Waiting], dict[str, float], dict[str, float]], slots: int, seconds: float
) -> None:
    """With what cases take known beforehand."""
    cases, takes, _ = matrix
    costs = Costs({})
    for each in cases:
        costs.learn(each.name, each.group, takes[each.name])
    schedule = Schedule(cases, costs, slots=slots, seconds=seconds)
    order = [each.name for each in cases]
    for now in range(0, int(seconds) + 1, 7):
        begun = schedule.begin(float(now))
        if begun is None:
            continue
        before = [each for each in schedule.waiting if order.index(each.name) < order.index(begun.name)]
        assert all(now + takes[each.name] > seconds for each in before)
        schedule.end(begun, takes[begun.name])
