"""Numbers that a program draws on the device: those that CUDA draws, where sizes follow from them."""

from __future__ import annotations

import importlib.util

import pytest
from program_runs import Program, Run

from planner.errors import TraceError
from planner.tracing.program.assumptions import About
from planner.tracing.program.packages.triton_package import find_written

STEP = """
model = torch.nn.Linear(32, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(64, 32, device="cuda")).sum().backward()
    optimizer.step()
"""
# As torch prints them on GPUs of NVIDIA: of the seed 42 in the documentation of flashinfer (LogitsPipe), of the seed 0
# in tests of NVIDIA/TensorRT-LLM (test_redrafter.py).
NORMAL = 0.1940, 2.1614, -0.1721, 0.8491, -1.9244, 0.6530, -0.6494, -0.8175, 0.5280, -1.2753
UNIFORM = 0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203, 0.2290, 0.9096
NEXT = 0.9722, 0.7910, 0.4690, 0.3300, 0.3345, 0.3783, 0.7640, 0.6405, 0.1103, 0.3594


def order(numbers: tuple[float, ...]) -> list[int]:
    """Places of numbers, of the largest one first."""
    return sorted(range(len(numbers)), key=lambda place: -numbers[place])


def test_numbers_are_in_the_order_that_a_gpu_has_them_in(run: Run, program: Program) -> None:
    lines = f"""
import torch
torch.manual_seed(42)
assert torch.randn(10, device="cuda").topk(10).indices.tolist() == {order(NORMAL)}
torch.manual_seed(0)
assert torch.rand(10, device="cuda").topk(10).indices.tolist() == {order(UNIFORM)}
assert torch.rand(10, device="cuda").topk(10).indices.tolist() == {order(NEXT)}
torch.manual_seed(0)
assert torch.rand(10, device="cuda").argsort(descending=True).tolist() == {order(UNIFORM)}
kept = torch.rand(8, 100, device="cuda").argsort(1)[:, :25]
assert len(torch.zeros(8, 100, device="cuda").scatter(1, kept, 1).nonzero()) == 200
"""

    found = run(f"python {program(lines + STEP)}")

    assert [each.text for each in found.assumptions if each.about is About.VALUE] == []


def test_whole_numbers_are_those_of_a_seed_and_differ_from_draw_to_draw(run: Run, program: Program) -> None:
    lines = """
import torch
torch.manual_seed(7)
first, second = (torch.randint(10, 90, (4000,), device="cuda").tolist() for _ in range(2))
torch.manual_seed(7)
assert torch.randint(10, 90, (4000,), device="cuda").tolist() == first != second
assert set(first) == set(range(10, 90))
labels = torch.randint(2, (1000,), dtype=torch.bool, device="cuda")
assert 400 < len(labels.nonzero()) < 600
"""

    assert run(f"python {program(lines + STEP)}", strict=True).iterations == 2


EXPERTS = """
import torch
router = torch.nn.Linear(32, 16).cuda()
chosen = router(torch.ones(64, 32, device="cuda")).topk(2).indices
mask = torch.nn.functional.one_hot(chosen, 16).permute(2, 1, 0)
tokens = [len(torch.where(mask[expert])[1]) for expert in range(16)]
assert sum(tokens) == 128 and max(tokens) < 24, tokens
"""


def test_tokens_choose_experts_evenly_where_nobody_has_the_scores(run: Run, program: Program) -> None:
    path = program(EXPERTS + STEP)

    found = run(f"python {path}")

    said = [(each.text, each.place[-12:], each.count) for each in found.assumptions if each.about is About.VALUE]
    assert said == [("the largest of values that nobody has are anywhere, evenly", "program.py:4", 1)]
    with pytest.raises(TraceError, match=r"the size of a result of aten.nonzero"):
        run(f"python {path}", strict=True)


KERNELS = """
import torch
import triton
import triton.language as tl

@triton.jit
def count(chosen, counts, tokens: tl.constexpr, experts: tl.constexpr):
    at = tl.arange(0, experts)
    tl.store(counts + at, tl.zeros([experts], tl.int32))
    tl.atomic_add(counts + tl.load(chosen + tl.arange(0, tokens)), tl.full([tokens], 1, tl.int32))

@triton.jit
def sum_up(counts, ends, experts: tl.constexpr):
    at = tl.arange(0, experts)
    tl.store(ends + at, tl.cumsum(tl.load(counts + at), 0))

@triton.jit
def keep_first(ends, into):
    tl.store(into, tl.load(ends))

chosen = torch.randint(16, (128,), dtype=torch.int32, device="cuda")
counts, ends = (torch.empty(16, dtype=torch.int32, device="cuda") for _ in range(2))
count[(1,)](chosen, counts, 128, 16)
assert counts.tolist() == chosen.long().cpu().bincount(minlength=16).tolist()
sum_up[(1,)](counts, ends, 16)
assert ends[-1].item() == 128
keep_first[(1,)](ends, counts)
assert counts[0].item() == ends[0].item() and counts[1].item() == (chosen == 1).sum().item()
nobody = torch.empty(16, dtype=torch.int32, device="cuda")
sum_up[(1,)](nobody, ends, 16)
last = ends[-1].item()
assert last == 1  # an answer: what nobody has written is not known
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_triton_kernels_of_whole_numbers_are_run(run: Run, program: Program) -> None:
    found = run(f"python {program(KERNELS + STEP)}")

    said = [(each.text, each.count) for each in found.assumptions if each.about is About.VALUE]
    assert said == [("a value of int32 read as 1 (any count)", 1)]


class tl:  # noqa: N801
    """Stands for Triton's language."""


def test_a_kernel_writes_through_what_it_stores_to_and_what_it_hands_on() -> None:
    def kernel(x, into, places, rows, handed, count) -> None:  # type: ignore[no-untyped-def]
        row = into + rows * count
        at = tl.load(places + tl.program_id(0))  # type: ignore[attr-defined]
        row += at
        tl.store(row, tl.load(x + at))  # type: ignore[attr-defined]
        helper(handed)  # type: ignore[name-defined] # noqa: F821

    assert find_written(kernel) == {"into", "rows", "handed", "count"}
