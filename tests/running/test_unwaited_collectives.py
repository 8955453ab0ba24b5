"""What a group of absent peers keeps of collectives on whose work nobody waits, as NCCL's does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import Run

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
        (f"{REDUCED}; work.get_future().wait(); del work", "", [8, 12, 12, 12, 12]),
        (f"{REDUCED}; del work", "weight.sum().item()", [8, 8, 8, 8, 8]),
        (f"{REDUCED}; del work", COMPILED, [8, 8, 8, 12, 12]),
        (GATHERED, "", [20, 36, 36, 36, 36]),
    ],
    ids=[
        "synchronous", "waited for", "of the future alone", "of a host that waits", "of a host that compiles",
        "gathered in one piece",
    ],
)  # fmt: skip
def test_it_is_there_until_the_collective_after_the_next_iteration(
    run: Run, program: Callable[[str], str], tmp_path: Path, collective: str, after: str, kept: list[int]
) -> None:
    assert allocated(run, program(LOOP.format(collective=collective, after=after)), tmp_path / "written") == kept


@pytest.mark.parametrize(
    ("rows", "kept"), [(64, [8, 12, 16, 16, 16]), (32768, [8, 12, 12, 12, 12])], ids=["short", "long"]
)
def test_of_iterations_shorter_than_two_looks_it_is_there_once_more(
    run: Run, program: Callable[[str], str], tmp_path: Path, rows: int, kept: list[int]
) -> None:
    square = f"torch.ones({rows}, {rows}, dtype=torch.bfloat16, device='cuda')"
    path = program(LOOP.format(collective=f"{REDUCED}; del work; {square}.mm({square})", after=""))
    written = tmp_path / "written"

    run(f"torchrun --nproc-per-node 2 {path} {written}", steps=6, is_known=True)

    assert [int(line) - WORKSPACE_MIB for line in written.read_text().split()] == kept


def test_an_optimizer_that_steps_every_other_time_takes_nothing_from_it(
    run: Run, program: Callable[[str], str], tmp_path: Path
) -> None:
    other = """if step == 0:
        bias = torch.zeros(1, device="cuda", requires_grad=True)
        seldom = torch.optim.SGD([bias], lr=0.1)
    if step % 2:
        seldom.step()
    """
    path = program(LOOP.format(collective=f"{other}{REDUCED}; del work", after=""))
    assert allocated(run, path, tmp_path / "written") == [8, 12, 12, 12, 12]


def test_of_two_optimizers_the_collectives_of_the_last_stay_no_longer(
    run: Run, program: Callable[[str], str], tmp_path: Path
) -> None:
    first = """if step == 0:
        bias = torch.zeros(1, device="cuda", requires_grad=True)
        first = torch.optim.SGD([bias], lr=0.1)
    first.step()
    """
    path = program(LOOP.format(collective=f"{first}{REDUCED}; del work", after=""))
    assert allocated(run, path, tmp_path / "written") == [8, 12, 12, 12, 12]


def test_earlier_torch_kept_none(run: Run, program: Callable[[str], str], tmp_path: Path) -> None:
    path = program(LOOP.format(collective=f"{REDUCED}; del work", after=""))
    assert allocated(run, path, tmp_path / "written", torch="2.6") == [4, 4, 4, 4, 4]
