"""Lines at which a value that nobody has decides: found, and tried the other way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from program_runs import Run

from planner.errors import ProgramError
from planner.events import Alloc
from planner.planning.program import MOST_BRANCHES, MOST_SECONDS, try_branches
from planner.tracing.program.assumptions import Branch
from planner.tracing.program.launch_line import parse
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.rank_trace import Trace

LINES = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(torch.zeros(2, 64, device="cuda")).sum()
    if loss.isnan():
        torch.empty(1 << 20, device="cuda")
    while not (loss < 3).item() and step > 5:
        pass
    shown = bool(loss > 3), (loss > 4).item()
    print("large" if loss > 5 else "small")
    loss.backward()
    optimizer.step()
"""


def test_lines_that_go_one_way_or_another_are_found_and_tried(run: Run, program: Callable[[str], str]) -> None:
    path = program(LINES)
    place = "/".join(path.split("/")[-2:])

    taken, other = run(f"python {path}"), run(f"python {path}", otherwise=f"{place}:7")

    assert taken.branches == tuple(Branch(f"{place}:{line}", False) for line in (7, 9, 12))
    assert not [each for each in taken.trace.events if _is_large(each)]
    assert [each for each in other.trace.events if _is_large(each)]


def test_tensors_that_are_compared_as_a_whole_are_taken_to_be_equal(run: Run, program: Callable[[str], str]) -> None:
    path = program(LINES.replace("loss.isnan()", "torch.equal(loss, torch.ones_like(loss))"))
    place = "/".join(path.split("/")[-2:])

    assert run(f"python {path}").branches[0] == Branch(f"{place}:7", answer=True)


def _is_large(event: object) -> bool:
    return isinstance(event, Alloc) and event.requested_bytes == 4 << 20


ORDER = ProgramOrder(line=parse(["python", "t.py"]), rank=0, gpu=Gpu(product="", arch="sm_90", total_bytes=1), cuda="")


def ran(size: int, *places: str, seconds: float = 1.0, is_whole: bool = False) -> RankRun:
    return RankRun(
        rank=0, trace=Trace((Alloc(0, size),), seconds=seconds), ending="the program ran to its end", iterations=4,
        is_whole=is_whole, branches=tuple(Branch(each, answer=True) for each in places),
    )  # fmt: skip


def judge(run: RankRun) -> Any:
    (event,) = run.trace.events
    assert isinstance(event, Alloc)
    return SimpleNamespace(peak=SimpleNamespace(allocated_bytes=event.requested_bytes, reserved_bytes=99))


def outcomes(taken: RankRun, other: Callable[[ProgramOrder], RankRun]) -> list[tuple[str, int, int]]:
    found = try_branches(taken, ORDER, other, judge)
    assert [each.place for each in found] == [each.place for each in taken.branches]
    return [(each.outcome, each.allocated_bytes, each.other_allocated_bytes) for each in found]


def test_both_peaks_are_told_where_they_differ() -> None:
    assert outcomes(ran(1, "t.py:1"), lambda _: ran(2)) == [("other memory", 1, 2)]
    assert outcomes(ran(1, "t.py:1"), lambda _: ran(1)) == [("the same memory", 0, 0)]
    assert outcomes(ran(1, "t.py:1"), lambda _: ran(2, is_whole=True)) == [("other memory; it ran to its end", 1, 2)]


def test_the_other_way_takes_as_many_iterations() -> None:
    orders: list[ProgramOrder] = []

    try_branches(ran(1, "t.py:1"), ORDER, lambda order: (orders.append(order), ran(1))[1], judge)

    assert [(each.otherwise, each.steps) for each in orders] == [("t.py:1", 4)]


def test_a_program_that_ends_the_other_way_is_said_to() -> None:
    def end(_order: ProgramOrder) -> RankRun:
        raise ProgramError("it is not finite")

    assert outcomes(ran(1, "t.py:1"), end) == [("the program ends: it is not finite", 0, 0)]


@pytest.mark.parametrize(
    ("taken", "tried"),
    [
        (ran(1, *(f"t.py:{line}" for line in range(5))), MOST_BRANCHES),
        (replace(ran(1, "t.py:1"), trace=Trace((Alloc(0, 1),), seconds=MOST_SECONDS + 1)), 0),
    ],
)
def test_only_what_is_cheap_is_tried(taken: RankRun, tried: int) -> None:
    found = outcomes(taken, lambda _: ran(1))

    assert [outcome.startswith("not tried") for outcome, _, _ in found] == [
        number >= tried for number in range(len(taken.branches))
    ]
