"""Programs that cannot be run on paper to their first step: each ends within its limits, by a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from program_runs import Run

from planner.errors import AllocatorConfError, PlannerError, ProgramError, TraceError
from planner.running.rank_process import CrashedError

Program = Callable[[str], str]


def test_an_error_of_its_own_is_shown_from_its_first_line(run: Run, program: Program) -> None:
    path = program("def train():\n    raise ValueError('no data')\n\n\ntrain()\n")

    with pytest.raises(CrashedError, match="ended with an error of its own on rank 0: ValueError: no data") as caught:
        run(f"python {path}")

    assert caught.value.text.splitlines()[1] == f'  File "{path}", line 5, in <module>'


@pytest.mark.parametrize(
    ("lines", "kind", "said"),
    [
        ("import no_such_package", CrashedError, "install no_such_package"),
        ("print('done')", ProgramError, "ran to its end without a step of an optimizer"),
        ("raise SystemExit(3)", ProgramError, "ended its process on rank 0 with exit code 3"),
        ("import os; os._exit(7)", ProgramError, "ended its process on rank 0 with exit code 7"),
        ("import os; os.fork()", ProgramError, "starts processes of its own"),
        (
            "import torch\nif __name__ == '__main__': torch.multiprocessing.spawn(print, nprocs=2)",
            ProgramError,
            "starts processes of its own",
        ),
        (
            "import torch\nx = torch.ones(4, device='cuda')\nx[x > 0]",
            TraceError,
            "size of a result of aten.nonzero, which depends on the values",
        ),
        ("import torch\ntorch.cuda.CUDAGraph()", TraceError, "torch.cuda.CUDAGraph: a CUDA graph keeps a pool"),
        (
            "import os\nos.environ['PYTORCH_ALLOC_CONF'] = 'nonsense:1'\nimport torch\ntorch.zeros(2).cuda()",
            AllocatorConfError,
            "'nonsense' is no option of the allocator",
        ),
        (
            "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/')",
            CrashedError,
            "planner run gives a program no network: 192.0.2.1 is not reached",
        ),
    ],
)
def test_it_ends_by_a_name(run: Run, program: Program, lines: str, kind: type[PlannerError], said: str) -> None:
    with pytest.raises(kind, match=said):
        run(f"python {program(lines)}")


def test_one_that_takes_too_long(run: Run, program: Program) -> None:
    with pytest.raises(ProgramError, match="not done with its first iterations within 1 s"):
        run(f"python {program('import time; time.sleep(60)')}", seconds=1)


def test_one_that_is_not_there(run: Run) -> None:
    with pytest.raises(ProgramError, match="there is no such program"):
        run("python /nowhere/train.py")
