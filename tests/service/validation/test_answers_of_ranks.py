"""What the ranks of a world answered becomes the measurements that were asked for, or the cause of the trouble."""

from __future__ import annotations

from typing import Any

import pytest

from planner.errors import MeasureError
from planner.events import Phase
from planner.service.validation.validation_run import collect_measurements
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement, OutOfMemory, to_json

LOST = {"problem": "the worker was lost", "remedy": "ask again"}
LEFT = {"problem": "connection reset by peer", "of_a_peer": True}


def ran(rank: int, *, out_of_memory: bool = False) -> Measurement:
    out = OutOfMemory(phase=Phase.FORWARD, iteration=1, message="CUDA out of memory.") if out_of_memory else None
    return Measurement(
        case="", job={}, device=DeviceFacts(kind="cuda"), software={}, date="", rank=rank, world_size=4,
        peers="present", out_of_memory=out,
    )  # fmt: skip


def answered(*measurements: Measurement) -> dict[int, Any]:
    return {each.rank: {"measurement": to_json(each)} for each in measurements}


def test_of_all_ranks_that_ran_those_asked_for_are_told() -> None:
    assert collect_measurements(answered(ran(2), ran(1), ran(0)), [2, 0]) == {0: ran(0), 2: ran(2)}


def test_a_rank_that_ran_out_of_memory_is_told_and_none_is_made_up_for_those_who_waited() -> None:
    answers = {0: LEFT, 1: LEFT, **answered(ran(3, out_of_memory=True))}
    assert collect_measurements(answers, [0, 1]) == {3: ran(3, out_of_memory=True)}


def test_the_cause_is_told_and_not_what_followed_from_it() -> None:
    with pytest.raises(MeasureError) as said:
        collect_measurements({0: LEFT, 1: LOST, **answered(ran(2))}, [0])
    assert (said.value.problem, said.value.remedy) == ("rank 1: the worker was lost", "ask again")


def test_a_single_rank_needs_no_name() -> None:
    with pytest.raises(MeasureError) as said:
        collect_measurements({0: LOST}, [0])
    assert said.value.problem == "the worker was lost"
