"""Lines at which a value that nobody has decides: found, and tried the other way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError
from planner.events import Alloc
from planner.job.launching.line import parse
from planner.planning.branches import MOST_BRANCHES, MOST_SECONDS, try_branches
from planner.tracing.program.assumptions import Branch
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


def test_lines_that_go_one_way_or_another_are_found_and_tried(run: Run, program: Program) -> None:
    path = program(LINES)
    place = "/".join(path.split("/")[-2:])

    taken, other = run(f"python {path}"), run(f"python {path}", otherwise=f"{place}:7")

    assert taken.branches == tuple(Branch(f"{place}:{line}", False) for line in (7, 9, 12))
    assert not [each for each in taken.trace.events if _is_large(each)]
    assert [each for each in other.trace.events if _is_large(each)]


RAISING = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def check(loss):
    assert (loss < 1e9).all(), f"too large: {loss}"
    if loss.isnan():
        raise ValueError("no number")
    if not torch.isfinite(loss).all():
        print("stops")
        raise SystemExit(1)
    if loss.isinf():
        print("goes on")
for step in range(2):
    loss = model(torch.zeros(2, 64, device="cuda")).sum()
    check(loss)
    try:
        assert loss.isfinite().all()
    except AssertionError:
        pass
    loss.backward()
    optimizer.step()
"""


def test_lines_whose_other_way_is_an_error_are_known_without_a_trial(run: Run, program: Program) -> None:
    path = program(RAISING)
    place = "/".join(path.split("/")[-2:])

    branches = {int(branch.place.removeprefix(f"{place}:")): branch for branch in run(f"python {path}").branches}

    assert {line: branch.raises for line, branch in branches.items()} == {
        6: True, 7: True, 9: True, 12: False, 18: False,
    }  # fmt: skip


COMPARED = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
one = torch.tensor(1.0, device="cuda")
for step in range(2):
    drawn = torch.randn(3, device="cuda")
    loss = model(torch.zeros(2, 64, device="cuda")).sum()
    with torch.no_grad():
        answers = [
            {expressions}
        ]
    assert answers == [{answer}] * len(answers), [number for number, each in enumerate(answers) if each is not {answer}]
    loss.backward()
    optimizer.step()
"""
UNEQUAL = [
    "torch.equal(loss, one)", "torch.equal(torch.ones_like(loss), loss)", "torch.allclose(loss, one)",
    "torch.equal(drawn, torch.ones(3).cuda())", "torch.all(loss == 1)", "(drawn == one).all()",
    "(drawn == 0.5).any()", "(1 == drawn).all(0)", "loss == 0", "torch.allclose(torch.zeros_like(drawn), drawn)",
    "torch.isclose(drawn, one).any()", "not (drawn != 0).all()", "not (loss != 1)", "(~(loss != one)).all()",
    "(loss == 0) & (drawn > 0).all()", "loss.item() == 1", "loss.item() == 1.0", "not loss.item() != 1",
    "float(loss) == 1.0", "drawn.argmax() == 0",
    "torch.equal(drawn.argmax(), torch.zeros_like(drawn.argmax()))", "(drawn.view(1, 3).t() == 0).all()",
]  # fmt: skip
EQUAL = [
    "torch.equal(loss, loss * 2 - loss)", "torch.allclose(drawn, drawn * 1)", "(drawn == drawn.abs()).all()",
    "torch.isfinite(loss).all()", "torch.equal(torch.ones_like(loss), one)", "torch.ones_like(loss).item() == 1",
    "(torch.zeros(3, device='cuda') == 0).all()", "(torch.zeros(9999, 9999, device='cuda').half() == 0).all()",
    "torch.equal(torch.ones(3, device='cuda'), torch.ones(3).cuda())",
    "not torch.allclose(torch.ones(3, device='cuda'), torch.zeros(3, device='cuda'))",
    "torch.allclose(torch.ones_like(loss) / 2 + 0.5, one)",
    "not loss != loss",
]  # fmt: skip


@pytest.mark.parametrize(("expressions", "answer"), [(UNEQUAL, False), (EQUAL, True)], ids=["unequal", "equal"])
def test_what_is_drawn_or_computed_equals_no_constant_and_what_is_computed_and_constants_equal_their_like(
    run: Run, program: Program, expressions: list[str], answer: bool
) -> None:
    lines = "\n            ".join(f"bool({each})," for each in expressions)

    run(f"python {program(COMPARED.format(expressions=lines, answer=answer))}")


WEIGHTS = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
norms = [torch.nn.LayerNorm(100000).cuda() for _ in range(2)]
mine = torch.stack([part.data for norm in norms for part in (norm.weight, norm.bias)])
gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
gathered[dist.get_rank()] = mine
dist.all_gather(gathered, mine)
for each in gathered:
    for theirs, norm in zip(each.unbind()[::2], norms):
        assert torch.all(theirs == norm.weight.data)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.zeros(2, 64, device="cuda")).sum().backward()
optimizer.step()
"""


def test_ranks_that_compare_their_weights_find_them_equal(run: Run, program: Program) -> None:
    """As Megatron-LM does with its norms of queries and keys."""
    assert run(f"torchrun --nproc-per-node 2 {program(WEIGHTS)}", rank=1).iterations == 1


GRADIENT = """
import torch

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        seen.append(torch.equal(gradient, torch.tensor(1.0, device=gradient.device)))
        return gradient * 2

seen = []
weight = torch.ones((), device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    Twice.apply(weight).backward()
    Twice.apply(weight).backward(torch.randn((), device="cuda"))
    (Twice.apply(weight) / 4).backward()
    optimizer.step()
assert seen == [True, False, False] * 2, seen
"""


def test_the_gradient_of_a_loss_is_one_and_that_of_anything_else_is_not(run: Run, program: Program) -> None:
    assert run(f"python {program(GRADIENT)}").iterations == 2


def _is_large(event: object) -> bool:
    return isinstance(event, Alloc) and event.requested_bytes == 4 << 20


ORDER = ProgramOrder(line=parse(["python", "t.py"]), rank=0, gpu=Gpu(product="", arch="sm_90", total_bytes=1))


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


def test_a_run_whose_files_stay_is_not_followed_by_one_that_would_find_and_change_them() -> None:
    started: list[ProgramOrder] = []

    found = try_branches(ran(1, "t.py:1"), replace(ORDER, writes=True), started.append, judge)  # type: ignore[arg-type]

    assert (started, found[0].outcome) == (
        [], "not tried: with --allow-writes it would find the files of the first run, and change them"
    )  # fmt: skip


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
