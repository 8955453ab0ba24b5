"""Sets of ranks behave as sets, whatever their size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.job.rank_sets import RankSet

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda span: (span[0], span[0] + span[1])))


def members(of: list[tuple[int, int]]) -> set[int]:
    return {rank for first, last in of for rank in range(first, last + 1)}


@given(spans)
def test_a_rank_set_holds_what_a_set_would_hold(given_spans: list[tuple[int, int]]) -> None:
    ranks, expected = RankSet.of(given_spans), members(given_spans)

    assert list(ranks) == sorted(expected)
    assert len(ranks) == len(expected)
    assert {rank for rank in range(-2, 60) if rank in ranks} == expected


@given(spans)
def test_the_same_ranks_are_equal_however_they_were_given(given_spans: list[tuple[int, int]]) -> None:
    one_by_one = RankSet.of((rank, rank) for rank in members(given_spans))

    assert RankSet.of(given_spans) == one_by_one


@given(spans)
def test_what_is_written_reads_as_the_same_set(given_spans: list[tuple[int, int]]) -> None:
    ranks = RankSet.of(given_spans)

    assert RankSet.parse(str(ranks)) == ranks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("", []), ("0", [0]), ("0-3", [0, 1, 2, 3]), ("0-1,16", [0, 1, 16]), ("3,1,2", [1, 2, 3])],
)
def test_the_text_is_what_schedulers_write(text: str, ranks: list[int]) -> None:
    assert list(RankSet.parse(text)) == ranks


def test_eight_ranks_and_another_are_written_short() -> None:
    assert str(RankSet.of([(16, 16), (0, 7)])) == "0-7,16"


@pytest.mark.parametrize("text", ["a", "0-", "1-2-3", "0, 1", "-1", "5-3", ",", "٣"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a set of ranks|goes backwards"):
        RankSet.parse(text)


@pytest.mark.parametrize("bad", [((3, 1),), ((0, 1), (1, 2)), ((0, 1), (2, 3)), ((-1, 0),)])
def test_spans_in_disorder_cannot_be_built(bad: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="no spans in order"):
        RankSet(bad)


def test_a_rank_is_a_number() -> None:
    assert "0" not in RankSet.world(8)
