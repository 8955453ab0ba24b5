"""What a step of a program computes, and whose its memory is, where frozen modules stand beside the trained one."""

from __future__ import annotations

from collections import Counter

from program_runs import Program, Run

from planner.events import Alloc, Category, Role
from planner.step_work import LaunchKind
from planner.tracing.program.rank_orders import RankRun

PROGRAM = """
import copy, torch
model = torch.nn.Linear(48, 48)
mean = copy.deepcopy(model).to("cuda").requires_grad_(False)
model.cuda()
encoder = torch.nn.Sequential(torch.nn.Linear(32, 40), torch.nn.Linear(40, 48)).cuda().requires_grad_(False)
judge = torch.nn.Linear(48, 7).cuda().requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def encode():
    with torch.no_grad():
        return encoder(torch.randn(64, 32, device="cuda"))

for step in range(12):
    for _ in range({micro_batches}):
        model(encode()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        with torch.no_grad():
            for _ in range(5):
                judge(model(encode()))
    with torch.no_grad():
        for a, b in zip(mean.parameters(), model.parameters()):
            a.mul_(0.99).add_(b, alpha=0.01)
"""


def products(run: RankRun) -> Counter[tuple[int, ...]]:
    work = run.trace.work
    return Counter(
        work.kernels[what].shapes[-1]
        for kind, _, what in work.launches
        if kind == LaunchKind.KERNEL and work.kernels[what].op in ("aten::mm", "aten::addmm")
    )


def test_an_encoder_that_runs_between_micro_batches_is_part_of_the_step(run: Run, program: Program) -> None:
    found = run(f"python {program(PROGRAM.format(micro_batches=4))}", steps=100)

    # Of each micro-batch the encoder's two products, the model's own and that of its weight's gradient.
    assert products(found) == {(64, 40): 4, (64, 48): 4 + 4, (48, 48): 4}


def test_one_that_runs_once_between_steps_is_and_an_evaluation_beside_it_is_not(run: Run, program: Program) -> None:
    found = run(f"python {program(PROGRAM.format(micro_batches=1))}", steps=100)

    assert products(found) == {(64, 40): 1, (64, 48): 1 + 1, (48, 48): 1}


def test_what_a_module_holds_that_nobody_calls_is_a_parameter(run: Run, program: Program) -> None:
    found = run(f"python {program(PROGRAM.format(micro_batches=1))}")

    born = {each.block: each.requested_bytes for each in found.trace.events if isinstance(each, Alloc)}
    parameters = Counter(
        born[each.block]
        for each in found.trace.events
        if isinstance(each, Role) and each.category is Category.PARAMETER and born[each.block] == 4 * 48 * 48
    )
    assert parameters == {4 * 48 * 48: 2}


GROWING = """
import torch
model = torch.compile(torch.nn.Linear(64, 64).cuda(), dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.ones(step + 2, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_iteration_that_compiles_takes_as_long_as_one_that_does_not(run: Run, program: Program) -> None:
    work = run(f"python {program(GROWING)}").trace.work
    assert work.launches
    assert LaunchKind.COMPILE not in {launch.kind for launch in work.launches}
