"""Kernels of Triton that a program launches itself: nothing runs."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.errors import TraceError
from planner.events import Alloc, Free

PROGRAM = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["count"])
@triton.heuristics({"even": lambda given: given["count"] % given["BLOCK"] == 0})
@triton.jit
def double(into, x, count, BLOCK: tl.constexpr, even: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(into + at, 2 * tl.load(x + at))

assert triton.cdiv(100, 64) == 2 and triton.next_power_of_2(100) == 128
known = triton.runtime.driver.active.utils.get_device_properties(0)
assert known["multiprocessor_count"] == torch.cuda.get_device_properties(0).multi_processor_count == 132
assert triton.runtime.driver.active.get_current_target().arch == 90
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
flag = torch.tensor([5]).cuda()
for step in range(2):
    x = model(torch.ones(4, 8, device="cuda"))
    y = torch.empty_like(x)
    double[lambda given: (triton.cdiv(x.numel(), given["BLOCK"]),)](y, x, x.numel())
    x.sum().backward()
    optimizer.step()
double[(1,)](flag, flag, 1)
assert flag.item() != 5  # what the kernel wrote is not known: no constant, and not the 5 of before
assert double.cache and all(each.kwargs == {"BLOCK": 64} for each in double.cache.values())
"""


def test_launches_are_nothing_and_timing_takes_its_buffer_once_for_each_configuration(
    run: Run, program: Program
) -> None:
    found = run(f"python {program(PROGRAM)}")

    timing = [
        each.block for each in found.trace.events if isinstance(each, Alloc) and each.requested_bytes == 256 << 20
    ]
    assert len(timing) == 4  # two for each of two keys
    assert {each.block for each in found.trace.events if isinstance(each, Free)} >= set(timing)
    assert [each.count for each in found.assumptions if each.text.startswith("of several configurations")] == [4]


def test_beside_a_compiled_model_launches_are_as_before(run: Run, program: Program) -> None:
    eager = run(f"python {program(PROGRAM)}")
    lines = PROGRAM.replace("x = model(", "x = compiled(").replace("flag =", "compiled = torch.compile(model)\nflag =")

    beside = run(f"python {program(lines)}")

    for found in (eager, beside):
        taken = [each for each in found.trace.events if isinstance(each, Alloc)]
        assert sum(each.requested_bytes == 256 << 20 for each in taken) == 4


def test_a_compiled_kernel_says_nothing_of_itself(run: Run, program: Program) -> None:
    lines = PROGRAM.replace("x.sum()", "double.fn.fn[(1,)](y, x, 4, BLOCK=4, even=True).n_regs\n    x.sum()")

    with pytest.raises(TraceError, match="asks a compiled Triton kernel for n_regs"):
        run(f"python {program(lines)}")
