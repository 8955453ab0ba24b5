"""What a group of absent peers keeps of collectives on whose work nobody waits, as NCCL's does."""

from __future__ import annotations

from pathlib import Path

import pytest
from program_runs import Program, Run

LOOP = """\
import sys, torch, torch.distributed as dist

dist.init_process_group("nccl")
weight = torch.zeros(1 << 20, device="cuda", requires_grad=True)  # 4 MiB
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(5):
    (weight * 2).sum().backward()
    {collective}
    optimizer.step()
    optimizer.zero_grad()
    {after}
    print(torch.cuda.memory_allocated() >> 20, file=open(sys.argv[1], "a"))
"""
GATHERED = """
    parts = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(parts, weight.detach(), async_op=True)
    del parts"""
COMPILED = "if step < 2: torch.compile(lambda x: x * 2, dynamic=False)(torch.ones(step + 2, device='cuda'))"
WORKSPACE_MIB = 32
"""cuBLAS's, of one thread."""
REDUCED = "work = dist.all_reduce(weight.grad, async_op=True)"


def allocated(run: Run, path: str, written: Path, torch: str = "") -> list[int]:
    """MiB at the end of each iteration."""
    run(f"torchrun --nproc-per-node 2 {path} {written}", steps=6, torch=torch)
    return [int(line) for line in written.read_text().split()]


@pytest.mark.parametrize(
    ("collective", "after", "kept"),
    [
        ("dist.all_reduce(weight.grad)", "", [4, 4, 4, 4, 4]),
        (f"{REDUCED}; work.wait(); del work", "", [4, 4, 4, 4, 4]),
        (f"{REDUCED}; work.get_future().wait(); del work", "", [8, 12, 16, 20, 24]),
        (f"{REDUCED}; del work", "weight.sum().item()", [8, 12, 16, 20, 24]),
        (f"{REDUCED}; del work", COMPILED, [8, 8, 8, 12, 16]),
        (GATHERED, "", [20, 36, 52, 68, 84]),
    ],
    ids=[
        "synchronous", "waited for", "of the future alone", "of a host that waits", "of a host that compiles",
        "gathered in one piece",
    ],
)  # fmt: skip
def test_it_is_there_until_the_watchdog_has_looked(
    run: Run, program: Program, tmp_path: Path, collective: str, after: str, kept: list[int]
) -> None:
    """Five iterations of some microseconds are over before it looks, but for those in which the host compiles."""
    assert allocated(run, program(LOOP.format(collective=collective, after=after)), tmp_path / "written") == kept


LONG = "square.mm(square)"
"""Some 0.1 s of an H100."""


@pytest.mark.parametrize(
    ("after", "kept"), [("", [8, 12, 16, 20, 24]), ("weight.sum().item()", [8, 8, 8, 8, 8])], ids=["ahead", "waits"]
)
def test_of_a_host_that_waits_for_long_iterations_those_of_one_are_there(
    run: Run, program: Program, tmp_path: Path, after: str, kept: list[int]
) -> None:
    square = "square = torch.ones(40960, 40960, dtype=torch.bfloat16, device='cuda')"
    path = program(LOOP.format(collective=f"{REDUCED}; del work; {square}; {LONG}; del square", after=after))
    written = tmp_path / "written"

    run(f"torchrun --nproc-per-node 2 {path} {written}", steps=6, is_known=True)

    assert [int(line) - WORKSPACE_MIB for line in written.read_text().split()] == kept


def test_earlier_torch_kept_none(run: Run, program: Program, tmp_path: Path) -> None:
    path = program(LOOP.format(collective=f"{REDUCED}; del work", after=""))
    assert allocated(run, path, tmp_path / "written", torch="2.6") == [4, 4, 4, 4, 4]
