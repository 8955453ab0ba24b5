"""Processes of a program that work on the host: they run, see no GPU, and do not stop the plan."""

from __future__ import annotations

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError

TRAINS = """
    layer = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
"""
FUNCTIONS = """
import concurrent.futures, multiprocessing, os, subprocess, sys, torch
def square(number):
    return int((torch.ones(64, 64) * number).pow(2).mean())
def put_squares(numbers, queue):
    for number in numbers: queue.put(square(number))
def use_gpu(number):
    return torch.ones(number, device="".join(["cu", "da"]))
"""
WORKS = {
    "a pool": "with multiprocessing.Pool(2) as pool: assert pool.map(square, range(4)) == [0, 1, 4, 9]",
    "a pool of new interpreters": """with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]""",
    "an executor": """with concurrent.futures.ProcessPoolExecutor(2) as executor:
        assert list(executor.map(square, range(4))) == [0, 1, 4, 9]""",
    "a process and its queue": """queue = multiprocessing.Queue()
    worker = multiprocessing.Process(target=put_squares, args=(range(4), queue), daemon=True)
    worker.start()
    assert [queue.get() for _ in range(4)] == [0, 1, 4, 9]""",
    "a manager": """with multiprocessing.Manager() as manager:
        known = manager.dict(a=1)
        assert known["a"] == 1""",
    "a fork": """child = os.fork()
    if child == 0: os._exit(square(3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9""",
    "a fork that falls through": """child = os.fork()
    if child: assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    else: sys.exit()""",
    "a command": """seen = [sys.executable, "-c", "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"]
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    assert subprocess.check_output(seen, text=True).strip() == "''"
    assert subprocess.check_output(seen, text=True, env=dict(os.environ)).strip() == "''"
    assert os.system("test -z $CUDA_VISIBLE_DEVICES") == 0 and os.system("exit 3") == 3 << 8
    hidden = ["sh", "-c", "test -z $CUDA_VISIBLE_DEVICES"]
    assert os.spawnvpe(os.P_WAIT, "sh", hidden, os.environ) == 0
    assert os.waitpid(os.posix_spawnp("sh", hidden, os.environ), 0)[1] == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0" """,
    "a program for the host": """open("prepare.py", "w").write("open('prepared', 'w').write('yes')")
    subprocess.run([sys.executable, "prepare.py"], check=True)
    assert open("prepared").read() == "yes" """,
}


@pytest.mark.parametrize("how", WORKS)
def test_they_do_their_work(run: Run, program: Program, how: str) -> None:
    lines = (
        f"{FUNCTIONS}\nif __name__ == '__main__':\n    os.chdir(os.path.dirname(__file__))\n    {WORKS[how]}\n{TRAINS}"
    )

    found = run(f"python {program(lines)}")

    assert (found.iterations, found.processes_per_node, found.ending) == (3, 1, "the program ran to its end")


def test_the_report_says_that_they_are_in_no_figure(run: Run, program: Program) -> None:
    lines = f"{FUNCTIONS}\nif __name__ == '__main__':\n    {WORKS['a pool']}\n{TRAINS}"

    (said,) = [each for each in run(f"python {program(lines)}").assumptions if "in no figure" in each.text]

    assert (said.place.endswith("program.py:11"), said.count) == (True, 2)
    assert said.text == "processes that the program starts work on the host, and are in no figure"


@pytest.mark.parametrize(
    "start",
    [
        "with multiprocessing.Pool(2) as pool: pool.map(use_gpu, range(1, 4))",
        "list(concurrent.futures.ProcessPoolExecutor(2).map(use_gpu, range(1, 4)))",
        "os.fork() or use_gpu(1)",
    ],
)
def test_one_that_reaches_the_gpu_is_named(run: Run, program: Program, start: str) -> None:
    path = program(f"{FUNCTIONS}\nif __name__ == '__main__':\n    {start}\n    os.wait()\n")

    with pytest.raises(ProgramError, match=r"program.py:8: a process that the program starts for work on the host"):
        run(f"python {path}")


def test_a_program_that_trains_beside_processes_on_its_gpu_is_named(run: Run, program: Program) -> None:
    lines = f"""
import multiprocessing, torch
def act(): torch.nn.Linear(4, 4).cuda()
if __name__ == '__main__':
    actor = multiprocessing.Process(target=act)
    actor.start()
{TRAINS}
    actor.join()
"""

    with pytest.raises(ProgramError, match=r"trains beside 1 processes of its own that reach the GPU \(act\)"):
        run(f"python {program(lines.replace('range(3)', 'range(30)'))}")
