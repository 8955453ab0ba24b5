"""Which ranks of a program are run, and for which of them a run speaks."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.events import Alloc, Free
from planner.planning.program_ranks import RankShare, choose_ranks, do_the_same, more_ranks, share_ranks, unite_alike
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.rank_trace import Trace


def ran(rank: int, size: int, talkers: tuple[tuple[int, ...], ...] = ()) -> RankRun:
    return RankRun(rank=rank, trace=Trace((Alloc(0, size),)), ending="", iterations=1, talkers=talkers)


def united(runs: list[RankRun], world_size: int) -> list[RankShare]:
    return unite_alike(share_ranks(runs, world_size))


@pytest.mark.parametrize(
    ("wanted", "world", "chosen"),
    [
        ("auto", 1, [0]),
        ("auto", 2, [0, 1]),
        ("auto", 3, [0, 1, 2]),
        ("auto", 4, [0, 1, 3]),
        ("auto", 16, [0, 1, 9, 15]),
        ("all", 3, [0, 1, 2]),
        ("5,0,5", 8, [0, 5]),
    ],
)
def test_ranks_are_chosen(wanted: str, world: int, chosen: list[int]) -> None:
    assert choose_ranks(wanted, world) == chosen


@pytest.mark.parametrize(("wanted", "said"), [("0,8", "there is no rank 8 in a world of 8"), ("0-3", "ranks '0-3'")])
def test_ranks_that_are_not_there(wanted: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        choose_ranks(wanted, 8)


def test_ranks_of_equal_events_are_one_class() -> None:
    (share,) = united([ran(0, 10), ran(7, 10)], 8)

    assert (share.ranks, share.run.rank, share.untried) == ("0-7", 0, True)


def test_ranks_of_other_events_are_another() -> None:
    first, last = united([ran(0, 10), ran(7, 11)], 8)

    assert (first.ranks, first.untried, last.ranks, last.untried) == ("0", False, "1-7", True)


def test_a_rank_that_was_not_run_does_as_the_middle_one() -> None:
    runs = [ran(0, 10), ran(1, 11), ran(5, 12), ran(7, 13)]

    assert [(each.run.rank, each.ranks, each.untried) for each in united(runs, 8)] == [
        (0, "0", False), (1, "1", False), (5, "2-6", True), (7, "7", False),
    ]  # fmt: skip


def test_neighbouring_frees_may_come_in_another_order() -> None:
    born = [Alloc(number, 512) for number in range(3)]

    assert do_the_same([*born, Free(0), Free(1)], [*born, Free(1), Free(0)])
    assert not do_the_same([*born, Free(0), Free(1)], [*born, Free(0), Free(2)])
    assert not do_the_same([*born, Free(0), Alloc(3, 1), Free(1)], [*born, Free(1), Alloc(3, 1), Free(0)])
    assert not do_the_same(born, [*born, Free(0)])


def test_a_class_may_have_gaps() -> None:
    first, other = united([ran(0, 10), ran(1, 11), ran(2, 10)], 3)

    assert (first.ranks, other.ranks, first.untried) == ("0,2", "1", False)


PIPELINE = ((0, 2, 4, 6),)


@pytest.mark.parametrize(
    ("wanted", "talkers", "more"),
    [
        ("auto", (), [1, 5, 7]),
        ("auto", PIPELINE, [1, 2, 4, 5, 6, 7]),
        ("auto", ((0, 4), (0, 2)), [1, 2, 4, 5, 6, 7]),
        ("auto", ((0, 3, 4),), [1, 5, 7]),
        ("0,3", PIPELINE, [3]),
    ],
)
def test_one_rank_of_each_stage_is_run(wanted: str, talkers: tuple[tuple[int, ...], ...], more: list[int]) -> None:
    assert more_ranks(wanted, 8, ran(0, 10, talkers)) == more


def test_a_pipeline_of_very_many_stages_is_not_run_unasked() -> None:
    assert more_ranks("auto", 64, ran(0, 10, (tuple(range(64)),))) == [1, 33, 63]


def test_a_rank_does_as_the_one_of_its_stage() -> None:
    runs = [ran(0, 10, PIPELINE), ran(2, 11), ran(4, 11), ran(6, 12), ran(7, 13)]

    assert [(each.run.rank, each.ranks, each.untried) for each in united(runs, 8)] == [
        (0, "0-1", True), (2, "2-5", True), (6, "6", False), (7, "7", False),
    ]  # fmt: skip


def test_a_lower_rank_does_as_the_one_that_was_run() -> None:
    (share,) = united([ran(5, 10)], 8)

    assert (share.ranks, share.untried) == ("0-7", True)
