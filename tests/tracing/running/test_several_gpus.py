"""Programs with several GPUs in one process: each has its own timeline and verdict."""

from __future__ import annotations

import pytest
from program_runs import Program, Run, judge

from planner.allocator.replay import replay
from planner.errors import ProgramError
from planner.events import write_out_repeats
from planner.job.named_gpus import look_up
from planner.planning.judging import told_on
from planner.report.statement import Verdict
from planner.tracing.program.rank_orders import divide_by_device
from planner.units import MIB

SPLIT = """
import torch
class Split(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(1024, {first}, bias=False).to("cuda:{one}")
        self.second = torch.nn.Linear({first}, 1024, bias=False).to("cuda:{other}")
    def forward(self, x):
        return self.second(torch.relu(self.first(x.to("cuda:{one}"))).to("cuda:{other}"))
model = Split()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    model(torch.randn(64, 1024)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PARALLEL = """
import torch
model = torch.nn.DataParallel(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(64, 1024).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

LOPSIDED = """
import torch
weights = [torch.zeros(size << 28, device=f"cuda:{index}", requires_grad=True) for index, size in enumerate((1, 16))]
optimizer = torch.optim.Adam(weights)
for _ in range(3):
    sum((weight * 2).sum().to("cuda:0") for weight in weights).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LATE = """
import torch
def make_layer(device):
    return torch.nn.Linear(1024, 1024, device=device)
{makes}
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
torch.cuda.set_device(layer.weight.device)
side = torch.cuda.Stream()
for _ in range(4):
    data = torch.randn(8192, 8192, device="cuda")
    with torch.cuda.stream(side):
        data @ data
    data.record_stream(side)
    del data
    layer(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_each_has_what_lies_on_it(run: Run, program: Program) -> None:
    """Parameters, gradients and both moments of 4 and 4 MiB, with workspaces of the threads that multiply."""
    found = run(f"python {program(SPLIT.format(first=1024, one=1, other=3))}", gpus=4, patience=60)

    assert (found.devices, found.iterations) == ((1, 3), 4)
    alone = run(f"python {program(SPLIT.format(first=1024, one=0, other=0))}", gpus=4, patience=60)
    first, second = divide_by_device(found.trace)
    (both,) = divide_by_device(alone.trace)
    peaks = [max(replay(list(trace.written_out())).allocated_bytes) for trace in (first, second, both)]
    assert min(peaks[:2]) > 20 * MIB
    assert sum(peaks[:2]) == peaks[2] + 2 * 32 * MIB  # cuBLAS has a workspace for each thread and device


def test_the_verdict_is_that_of_the_fullest(program: Program) -> None:
    found = judge("python", program(LOPSIDED), gpu="A100-SXM-40GB", node_gpus=2)

    shown = [(each.ranks, dict(each.coordinates), each.verdict) for each in found.rank_classes]
    assert shown == [("0", {"cuda": 1}, Verdict.EXCEEDS), ("0", {"cuda": 0}, Verdict.FITS)]
    assert found.verdict is Verdict.EXCEEDS
    assert "fails on rank 0, cuda:1, is in iteration" in found.out_of_memory[0]


def test_a_gpu_that_the_node_does_not_have_is_named(run: Run, program: Program) -> None:
    path = program(SPLIT.format(first=1024, one=0, other=2))

    with pytest.raises(ProgramError, match=r"the program uses cuda:2, and a node of the job has 2") as caught:
        run(f"python {path}", gpus=2)

    assert (caught.value.place.endswith("program.py:7"), caught.value.allowed) == (True, "GPUs 0 to 1")
    assert caught.value.remedy.startswith("--gpus 3 ")


def test_data_parallel_copies_parameters_and_gathers_outputs(run: Run, program: Program) -> None:
    """The copies of 16 MiB are there from the forward to the end of the backward; what gathers them are as many."""
    found = run(f"python {program(PARALLEL)}", gpus=4, patience=60)

    assert (found.devices, found.iterations, found.ending) == ((0, 1, 2, 3), 6, "the program ran to its end")
    traces = divide_by_device(found.trace)
    first, *others = [max(replay(list(trace.written_out())).allocated_bytes) for trace in traces]
    assert first > max(others)
    assert max(others) - min(others) < MIB
    assert 32 * MIB < max(others) < 32 * MIB + 3 * 32 * MIB


def test_what_another_stream_uses_is_free_when_its_own_gpu_has_passed_it(run: Run, program: Program) -> None:
    gpu = look_up("H100-SXM-80GB")
    makes = ["layer = make_layer('cuda:0'); other = make_layer('cuda:1')",
             "other = make_layer('cuda:0'); layer = make_layer('cuda:1')"]  # fmt: skip

    found = [run(f"python {program(LATE.format(makes=each))}", gpus=2, patience=60) for each in makes]

    traces = [divide_by_device(each.trace)[device] for device, each in enumerate(found)]
    told = [told_on(gpu, 2, trace) for trace in traces]
    peaks = [max(replay(list(write_out_repeats(each.events, each.repeats))).reserved_bytes) for each in told]
    assert peaks[0] == peaks[1]
    assert peaks[0] > 3 * 256 * MIB  # the host is ahead of products that take long


def test_data_parallel_on_one_gpu_is_the_module_itself(run: Run, program: Program) -> None:
    parallel = run(f"python {program(PARALLEL)}")
    alone = run(f"python {program(PARALLEL.replace('torch.nn.DataParallel', ''))}")

    assert (parallel.devices, parallel.counted) == ((0,), alone.counted)


def test_ranks_with_one_gpu_each_are_alike(run: Run, program: Program) -> None:
    lines = """
import os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
    path = program(lines)

    first, last = (run(f"torchrun --nproc-per-node 4 {path}", rank=rank) for rank in (0, 3))

    assert (first.devices, last.devices) == ((0,), (3,))
    assert first.trace.events == last.trace.events
