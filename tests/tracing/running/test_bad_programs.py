"""Programs that cannot be run on paper to their first step: each ends within its limits, by a name."""

from __future__ import annotations

import json
import re

import pytest
from program_runs import Program, Run

from planner.errors import AllocatorConfError, PlannerError, ProgramError, TraceError
from planner.events import Mark
from planner.job.launching.line import parse
from planner.tracing.program import rank_process
from planner.tracing.program.rank_orders import Gpu, ProgramOrder
from planner.tracing.program.rank_process import CrashedError


def test_an_error_of_its_own_is_shown_from_its_first_line(run: Run, program: Program) -> None:
    path = program("def train():\n    raise ValueError('no data')\n\n\ntrain()\n")

    with pytest.raises(CrashedError, match="ended with an error of its own on rank 0: ValueError: no data") as caught:
        run(f"python {path}")

    assert caught.value.text.splitlines()[1] == f'  File "{path}", line 5, in <module>'
    assert caught.value.place.endswith("/program.py:2")


@pytest.mark.parametrize(
    ("module", "said"),
    [("nothing_here", "there is no such module"), ("encodings", "it is a package without a __main__")],
)
def test_a_module_that_cannot_be_run_is_named(module: str, said: str, run: Run) -> None:
    with pytest.raises(ProgramError, match=f"python -m {module}: {said}"):
        run(f"python -m {module}")


LONG = """
import torch
def fail(depth):
    if depth:
        fail(depth - 1)
    raise RuntimeError("it fails here:\\n" + "\\n".join(f"  - frame {number} of many" for number in range(300)))
fail(20)
"""


def test_of_a_long_error_the_last_ten_lines_are_shown_whole(run: Run, program: Program) -> None:
    with pytest.raises(CrashedError) as caught:
        run(f"python {program(LONG)}")

    assert caught.value.problem == "the program ended with an error of its own on rank 0: RuntimeError: it fails here:"
    shown = caught.value.text.splitlines()
    assert shown[1:] == [f"  - frame {number} of many" for number in range(290, 300)]
    assert re.fullmatch(r"\.\.\. \d{3} lines before these", shown[0])


def test_a_compiler_that_does_not_know_the_gpu_is_said_below_its_source(run: Run, program: Program) -> None:
    error = "nvrtc: error: invalid value for --gpu-architecture (-arch)"
    message = f"\n__global__ void kernel() {{}}\n{error}\n"

    with pytest.raises(CrashedError, match=f"RuntimeError: {re.escape(error)}") as caught:
        run(f"python {program(f'raise RuntimeError({message!r})')}")

    assert "could not on a real one: --torch with the release that the job has (2.7 for a V100)" in caught.value.remedy


def test_a_line_that_nobody_reads_to_its_end_is_cut_where_that_is_said(run: Run, program: Program) -> None:
    with pytest.raises(CrashedError, match=r"x{100}\.\.\. \(\d+ more characters\)") as caught:
        run(f"python {program('raise ValueError(20_000 * chr(120))')}")

    assert len(str(caught.value)) + len(caught.value.text) < 4000


@pytest.mark.parametrize(
    ("lines", "kind", "said"),
    [
        ("import no_such_package", ProgramError, "change:  pip install no-such-package"),
        ("import torch.no_such_part", CrashedError, "install the version of the package that the program wants"),
        ("from torch import no_such_name", CrashedError, "install the version of the package that the program wants"),
        ("print('done')", ProgramError, "without a step of an optimizer, and without a forward of a module"),
        ("raise SystemExit(3)", ProgramError, "ended its process on rank 0 with exit code 3"),
        ("import sys; sys.exit('no such dataset: c4')", ProgramError, "with exit code 1: no such dataset: c4"),
        ("import os; os._exit(7)", ProgramError, "ended its process on rank 0 with exit code 7"),
        ("import os; os.fork()", ProgramError, "without a step of an optimizer, and without a forward of a module"),
        (
            "import ray\nray.init(num_cpus=1, include_dashboard=False)",
            ProgramError,
            "the program starts a cluster of Ray, whose workers would train",
        ),
        ("open('/nowhere/data.bin')", CrashedError, r"FileNotFoundError: .*'/nowhere/data.bin'"),
        ("raise OSError(28, 'No space left on device')", CrashedError, "No space left on device"),
        (
            "import torch\nif __name__ == '__main__': torch.multiprocessing.spawn(print, nprocs=2)",
            ProgramError,
            "program.py:2: the program starts 2 ranks on a node, and nobody has said that it has so many GPUs",
        ),
        ("import torch\ntorch.cuda.MemPool()", TraceError, "torch.cuda.MemPool: a pool of its own is not modelled"),
        (
            "import os\nos.environ['PYTORCH_ALLOC_CONF'] = 'nonsense:1'\nimport torch\ntorch.zeros(2).cuda()",
            AllocatorConfError,
            "'nonsense' is not an option of the allocator",
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


@pytest.mark.parametrize(("writes", "remedy"), [(False, "its files may take 4.00 GiB in all"), (True, "make room")])
def test_one_that_fills_the_disk_is_told_how_much_it_may_write(program: Program, writes: bool, remedy: str) -> None:
    line = parse(["python", program("raise OSError(28, 'No space left on device')")])
    gpu = Gpu(product="", arch="sm_90", total_bytes=1)
    order = ProgramOrder(line=line, rank=0, gpu=gpu, writes=writes)
    said = {"said": "OSError: [Errno 28]", "sought": [], "no_room": True, "text": "", "place": ""}
    crash = json.dumps(said).encode()

    assert remedy in str(rank_process._crash_error(crash, order))


def test_a_rank_that_lacks_what_another_has_written_is_told_how_it_stays(program: Program) -> None:
    line = parse(["torchrun", "--nproc-per-node", "2", program("open('made.pt')")])
    order = ProgramOrder(line=line, rank=1, gpu=Gpu(product="", arch="sm_90", total_bytes=1))
    said = {"said": "FileNotFoundError: [Errno 2] No such file or directory: 'made.pt'", "text": "", "place": ""}
    crash = json.dumps(said | {"sought": [], "no_room": False}).encode()

    assert "--allow-writes" in str(rank_process._crash_error(crash, order))


SPAWNED = """
import torch
def train(rank, gpus):
    layer = torch.nn.Linear(4, 4).cuda(rank)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2, num_workers=2)
    for rows in torch.utils.data.dataloader._MultiProcessingDataLoaderIter(loader):
        layer(rows.cuda()).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(1,), nprocs=torch.cuda.device_count())
"""


def test_one_process_for_its_one_gpu_and_a_librarys_own_loader_are_no_others(run: Run, program: Program) -> None:
    assert run(f"python {program(SPAWNED)}").iterations == 3


STEPS_BY_HAND = """
import torch
layer = torch.nn.Linear(4, 4).cuda()
for _ in range({batches}):
    for _ in range(2):
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
    with torch.no_grad():
        layer(torch.ones(2, 4, device="cuda"))
        for parameter in layer.parameters():
            {update}
"""


@pytest.mark.parametrize(
    "update",
    [
        "parameter -= parameter.grad",
        "parameter.data -= parameter.grad; parameter.grad = None",
        "parameter.grad.zero_()",
    ],
)
def test_one_with_an_update_of_its_own_has_iterations_of_as_many_micro_batches(
    run: Run, program: Program, update: str
) -> None:
    found = run(f"python {program(STEPS_BY_HAND.format(batches=9, update=update))}", steps=3)

    assert (found.iterations, found.ending) == (3, "ended after 3 iterations, as asked for")
    assert "No optimizer of torch.optim steps: an iteration ends where" in " ".join(
        each.text for each in found.assumptions
    )
    begun = [(each.phase.value, each.iteration) for each in found.trace.written_out() if isinstance(each, Mark)]
    assert [each for each in begun if each[1] == 2] == [
        *(("forward", 2), ("backward", 2)) * 2, ("optimizer_step", 2), ("eval", 2),
    ]  # fmt: skip


def test_one_with_an_update_that_nobody_sees_is_followed_to_its_end(run: Run, program: Program) -> None:
    lines = STEPS_BY_HAND.format(batches=2, update="parameter.data.sub_(0.1)")

    found = run(f"python {program(lines)}")

    assert (found.iterations, found.ending) == (0, "the program ran to its end")
    assert "no step by hand was seen" in " ".join(each.text for each in found.assumptions)


def test_one_that_takes_too_long(run: Run, program: Program) -> None:
    with pytest.raises(ProgramError, match="not done with its first iterations within 1 s"):
        run(f"python {program('import time; time.sleep(600)')}", seconds=1)
