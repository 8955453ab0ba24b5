"""What communication hooks of DistributedDataParallel take, in a program that registers them."""

from __future__ import annotations

from collections.abc import Iterable

from program_runs import Program, Run

from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role

LINES = """
import os
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(4))).cuda()
model = torch.nn.parallel.DistributedDataParallel(layers)
{hook}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COMPRESSED = "model.register_comm_hook(None, default_hooks.fp16_compress_hook)"
POWER = """
state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
"""
GRADIENTS = 4 * 512 * 512 * 4
COMMAND = "torchrun --nproc-per-node 2 {path}"


def taken_in_backward(events: Iterable[Event], iteration: int) -> list[Alloc]:
    """The blocks that are born in one backward."""
    found: list[Alloc] = []
    now: tuple[Phase, int] | None = None
    for event in events:
        if isinstance(event, Mark):
            now = event.phase, event.iteration
        elif isinstance(event, Alloc) and now == (Phase.BACKWARD, iteration):
            found.append(event)
    return found


def test_a_compressing_hook_takes_half_of_each_bucket_and_leaves_nothing(run: Run, program: Program) -> None:
    events = list(run(COMMAND.format(path=program(LINES.format(hook=COMPRESSED)))).trace.written_out())

    taken = taken_in_backward(events, 3)
    halves = [each for each in taken if each.origin is not None and each.origin.op == "aten._to_copy"]
    assert sum(each.requested_bytes for each in halves) == GRADIENTS // 2
    assert {each.block for each in halves} <= {event.block for event in events if isinstance(event, Free)}


def test_power_sgd_keeps_errors_as_large_as_the_gradients_once_it_compresses(run: Run, program: Program) -> None:
    events = list(run(COMMAND.format(path=program(LINES.format(hook=POWER)))).trace.written_out())

    roles = [event for event in events if isinstance(event, Role) and event.category is Category.COMMUNICATION]
    errors = {role.block for role in roles if role.name == "powerSGD_hook"}
    kept = {
        iteration: sum(each.requested_bytes for each in taken_in_backward(events, iteration) if each.block in errors)
        for iteration in (2, 3, 4)
    }
    assert kept[2] == 0
    assert GRADIENTS <= kept[3] < 1.05 * GRADIENTS
    assert GRADIENTS <= kept[4] < 1.05 * GRADIENTS
