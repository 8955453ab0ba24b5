"""Intervals from recorded runs: of kinds with many runs, of those with few, and of all that are at hand."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Sequence

import pytest

from planner.job.kinds import Kind, Trait
from planner.truth.calibration.recorded_errors import (
    ENOUGH_RUNS,
    RecordedError,
    band,
    bound,
    is_covered,
    recorded_errors,
    reserved_band,
    reserved_bound,
)

EAGER = Kind(program=True)
SPECIAL = EAGER.having(Trait.HOST_AHEAD)


def runs(errors: Sequence[float], kind: Kind = EAGER) -> list[RecordedError]:
    return [
        RecordedError(source=str(number), family="made up", run="1", kind=kind, figure="reserved", error=error)
        for number, error in enumerate(errors)
    ]


def test_the_interval_of_many_runs_is_the_shortest_that_leaves_out_few_enough() -> None:
    rows = runs([0.001 * number for number in range(100)] + [0.5, 0.6])

    low, high = band(rows, EAGER)

    assert (low, high) == (0.0, 0.098)  # 5 of 103 lie outside of it or at its ends


def test_where_nearly_all_runs_are_exact_the_interval_has_no_width() -> None:
    assert band(runs([0.0] * 100 + [0.3, -0.3]), EAGER) == (0.0, 0.0)


@pytest.mark.parametrize("count", [45, 100, 200])
def test_a_further_run_of_as_many_lies_in_it_in_95_percent(count: int) -> None:
    chance = random.Random(count)
    inside = []
    for _ in range(200):
        low, high = band(runs([chance.gauss(0, 0.02) for _ in range(count)]), EAGER)
        inside += [low <= chance.gauss(0, 0.02) <= high for _ in range(20)]

    assert statistics.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_few_runs_reach_further_than_their_own_range() -> None:
    low, high = band(runs([-0.01, 0.0, 0.01]), EAGER)

    assert low < -0.017
    assert high > 0.017


def test_a_kind_without_runs_is_as_sure_as_the_next_wider_one() -> None:
    rows = runs([0.001 * number for number in range(50)])

    assert band(rows, SPECIAL) == band(rows, EAGER)


def test_a_kind_with_few_runs_reaches_as_far_as_the_wider_one_for_what_it_lacks() -> None:
    rows = [*runs([-0.2, 0.2] * 50), *runs([0.0] * 20, SPECIAL)]

    low, high = band(rows, SPECIAL)

    assert (low, high) == (pytest.approx(-0.2 * (1 - 20 / 39)), pytest.approx(0.2 * (1 - 20 / 39)))


def test_what_is_special_about_a_kind_says_nothing_of_others() -> None:
    usual = runs([0.001 * number for number in range(50)])

    assert band([*usual, *runs([0.9] * 50, SPECIAL)], EAGER) == band(usual, EAGER)


def test_fewer_runs_exceed_a_bound_of_less_risk() -> None:
    rows = runs([0.001 * number for number in range(1000)])

    assert [bound(rows, EAGER, risk) for risk in (0.5, 0.05, 0.01)] == pytest.approx([0.5, 0.95, 0.99])


def test_a_risk_that_no_number_of_runs_shows_is_beyond_the_largest() -> None:
    rows = runs([0.001 * number for number in range(50)])

    assert bound(rows, EAGER, 0.001) > 0.049


class TestOfRecordedRuns:
    """Of all that are at hand, each source left out in turn (docs/results/intervals.md)."""

    ROWS = recorded_errors()

    def of_kinds(self) -> dict[str, list[RecordedError]]:
        kinds: defaultdict[str, list[RecordedError]] = defaultdict(list)
        for row in self.ROWS:
            kinds[row.kind.name].append(row)
        return dict(kinds)

    def test_kinds_with_20_runs_or_more_are_covered_in_94_to_97_percent(self) -> None:
        shares = {
            name: sum(is_covered(row, self.ROWS) for row in rows) / len(rows)
            for name, rows in self.of_kinds().items()
            if len(rows) >= 20
        }

        assert len(shares) >= 4
        assert {name: share for name, share in shares.items() if not 0.94 <= share <= 0.97} == {}

    def test_of_an_eager_program_the_interval_is_less_than_a_percent_wide(self) -> None:
        of_programs = [row for row in self.ROWS if row.kind.program and not row.kind.compiled]

        widths = [high - low for low, high in (reserved_band(row.kind) for row in of_programs)]

        assert statistics.median(widths) <= 0.01

    def test_less_risk_is_more_memory(self) -> None:
        for name, rows in self.of_kinds().items():
            bounds = [reserved_bound(rows[0].kind, risk) for risk in (0.5, 0.1, 0.05, 0.01)]
            assert bounds == sorted(bounds), name

    def test_every_interval_holds_the_plan(self) -> None:
        for name, rows in self.of_kinds().items():
            low, high = reserved_band(rows[0].kind)
            assert low <= 0 <= high, name

    def test_what_has_few_runs_is_no_surer_than_what_has_many(self) -> None:
        few = {name for name, rows in self.of_kinds().items() if len(rows) < ENOUGH_RUNS}

        assert "compiled programs, one rank" in few
