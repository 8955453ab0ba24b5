"""Programs that name their phases by torch.profiler.record_function."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError
from planner.events import Mark

NAMED = """
import torch
from torch.profiler import record_function
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    with record_function("planner.rollout"):
        with torch.no_grad():
            model(torch.zeros(8, 64, device="cuda"))
    with record_function("my own part"):
        loss = model(torch.zeros(2, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with record_function("planner.eval"):
        score = model(torch.zeros(4, 64, device="cuda"))
"""
CHECKPOINTED = """
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
get_optimizer_state_dict(model, optimizer)  # steps once with gradients of zero, for its state
twin = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(64, 64, device="meta"))])
twin.param_groups[0]["params"][0].grad = torch.zeros(64, 64, device="meta")
twin.step()
for step in range(2):
    model(torch.zeros(2, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_a_program_names_is_that_phase_and_nothing_within_it_is_another(run: Run, program: Program) -> None:
    events = run(f"python {program(NAMED)}").trace.written_out()

    first = [event.phase.value for event in events if isinstance(event, Mark) and event.iteration == 1]
    assert first == ["rollout", "forward", "backward", "optimizer_step", "eval"]


def test_a_step_for_a_state_dict_or_without_memory_is_no_iteration(run: Run, program: Program) -> None:
    assert run(f"python {program(CHECKPOINTED)}").iterations == 2


def test_a_phase_that_planner_does_not_know_is_a_name_like_any(run: Run, program: Program) -> None:
    found = run(f"python {program(NAMED.replace('planner.eval', 'planner.lunch'))}")

    assert "eval" not in {event.phase.value for event in found.trace.events if isinstance(event, Mark)}


def test_an_error_within_a_named_phase_is_the_programs_own(run: Run, program: Program) -> None:
    failing = NAMED.replace("score = ", "raise ValueError('no score') or ")
    with pytest.raises((ProgramError, ValueError), match="no score"):
        run(f"python {program(failing)}")
