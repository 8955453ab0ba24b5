"""Stages of a pipeline hear from their absent neighbours which shapes they will get."""

from __future__ import annotations

from collections import Counter

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError, TorchVersionError
from planner.events import Alloc, Category, Role
from planner.tracing.program.assumptions import Assumptions
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.program.value_answers import PipelineNeighbours
from planner.upstream import torch_releases

LINES = """
import os, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
dist.init_process_group("nccl")
rank, stages = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
part = torch.nn.Linear(48 if rank == 0 else 64, 10 if rank == stages - 1 else 64).cuda()
schedule = Schedule1F1B(
    PipelineStage(part, rank, stages, torch.device("cuda", rank)), n_microbatches=4,
    loss_fn=torch.nn.functional.cross_entropy,
)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
for _ in range(4):
    if rank == 0:
        schedule.step(torch.randn(32, 48, device="cuda"))
    elif rank == stages - 1:
        losses = []
        schedule.step(target=torch.randint(0, 10, (32,), device="cuda"), losses=losses)
        print(sum(losses).item())
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""


def shapes(found: RankRun) -> set[tuple[int, ...]]:
    return {each.origin.shape for each in found.trace.events if isinstance(each, Alloc) and each.origin}


def received(found: RankRun) -> Counter[tuple[str, tuple[int, ...]]]:
    """Blocks that were said to be received, by what they are called and shaped."""
    births = {each.block: each.origin.shape for each in found.trace.events if isinstance(each, Alloc) and each.origin}
    return Counter(
        (each.name, births[each.block])
        for each in found.trace.events
        if isinstance(each, Role) and each.category is Category.COMMUNICATION
    )


def said(found: RankRun) -> str:
    return " ".join(each.text for each in found.assumptions)


def test_a_stage_takes_what_the_one_before_it_sends(run: Run, program: Program) -> None:
    command = f"torchrun --nproc-per-node 2 {program(LINES)}"

    first = run(command)
    last = run(command, rank=1, heard=first.told)

    assert (8, 64) in shapes(first)  # the gradient of what it sends
    assert {(8, 64), (8, 10)} <= shapes(last)
    assert "is shaped as" not in said(last)


def test_what_a_stage_receives_is_communication(run: Run, program: Program) -> None:
    command = f"torchrun --nproc-per-node 3 {program(LINES)}"

    middle = run(command, rank=1, heard=run(command).told)

    assert received(middle) == {("received activations", (8, 64)): 4, ("received gradients", (8, 64)): 4}


def test_gradients_that_a_schedule_adds_up_itself_are_named(run: Run, program: Program) -> None:
    split = LINES.replace("Schedule1F1B", "ScheduleInterleavedZeroBubble").replace(
        '    PipelineStage(part, rank, stages, torch.device("cuda", rank)), n_m',
        '    [PipelineStage(part, rank, stages, torch.device("cuda", rank))], n_m',
    )

    found = run(f"torchrun --nproc-per-node 2 {program(split)}")

    gradients = {
        each.name for each in found.trace.events if isinstance(each, Role) and each.category is Category.GRADIENT
    }
    assert gradients == {"weight", "bias"}


def test_stages_that_were_not_run_are_taken_to_send_the_same(run: Run, program: Program) -> None:
    command = f"torchrun --nproc-per-node 4 {program(LINES)}"

    last = run(command, rank=3, heard=run(command).told)

    assert {(8, 64), (8, 10)} <= shapes(last)
    assert "what stage 2 of the pipeline sends is shaped as what stage 0 sends" in said(last)


def test_a_stage_without_any_before_it_is_told(run: Run, program: Program) -> None:
    with pytest.raises(ProgramError, match="stage 1 of the pipeline waits for the shapes that stage 0 sends"):
        run(f"torchrun --nproc-per-node 2 {program(LINES)}", rank=1)


def test_a_version_that_agrees_on_shapes_otherwise_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.pipelining import PipelineStage

    with PipelineNeighbours(Assumptions(), ()).present():
        monkeypatch.setattr(torch_releases, "installed", lambda: (2, 12))
        with pytest.raises(TorchVersionError, match="pipelines of a program: not with torch"):
            PipelineStage(None, 0, 2, None)
