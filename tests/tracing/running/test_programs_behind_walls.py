"""Programs behind walls: what comes back has to be a report, and their variables and commands reach nothing outside."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from program_runs import Program, Run

from planner.errors import ProgramError
from planner.hardware import catalog
from planner.job.launching.line import parse
from planner.runtime.scripts import run_script
from planner.runtime.walled_program import WalledProgram
from planner.runtime.walls import Walls
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import run_rank

TRAINS = """
import torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ANSWERS = """
import os
from planner.events import Alloc, Free, Mark, Phase
from planner.runtime.messages import AnswerWriter
from planner.tracing import rank_trace
from planner.tracing.program import rank_orders
from planner.tracing.program.rank_orders import RankRun
from planner.tracing.rank_trace import Trace
trace = rank_trace.dumps(Trace((Mark(Phase.FORWARD, 1), Alloc(0, 512, 0, None), Free(0)))).encode()
about = rank_orders.write_report(RankRun(rank=0, ending="it is small", iterations=3))
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}") and "pipe:" in os.readlink(f"/proc/self/fd/{name}"):
        write(AnswerWriter(int(name)))
os._exit(0)
"""
MALFORMED = {
    "bytes that are no answer": ("os.write(answer.descriptor, b'x' * 1000)", "the answer is not whole"),
    "a trace alone": ("answer.write('trace', trace)", "ended its process on rank 0 with exit code 0"),
    "a trace of unknown events": (
        "answer.write('trace', trace.replace(b'[\"f\",0]', b'[\"x\",0]')); answer.write('about', about)",
        "no event: 'x'",
    ),
    "events that repeat without end": (
        "answer.write('trace', trace.replace(b'repeats\":[]', b'repeats\":[[1,2,9999999999]]'));"
        " answer.write('about', about)",
        "repeat more often",
    ),
    "the report of another rank": (
        "answer.write('trace', trace); answer.write('about', about.replace(b'\"rank\": 0', b'\"rank\": 7'))",
        "the report of another rank",
    ),
    "a number that is a text": (
        "answer.write('trace', trace); answer.write('about', about.replace(b': 3', b': \"3\"'))",
        "is not a report of a run",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_an_answer_that_is_no_report_is_refused(run: Run, program: Program, what: str) -> None:
    writes, problem = MALFORMED[what]

    with pytest.raises(ProgramError, match=problem):
        run(f"python {program(f'def write(answer): {writes}' + ANSWERS)}")


def run_behind_walls(folder: Path, *words: str, gpus: int = 0) -> RankRun:
    folder.chmod(0o755)  # behind walls it is nobody who reads it
    known = catalog.by_name("H100-SXM-80GB")
    assert known is not None
    gpu = Gpu(product=known.product, arch=known.arch, total_bytes=known.total_bytes, outside_bytes=2**30)
    walled = WalledProgram(walls=Walls(as_root=True, place="program"), folder=str(folder))
    line = parse(words, node_gpus=gpus, run_script=partial(run_script, walled=walled))
    order = ProgramOrder(line=replace(line, folder=str(folder)), rank=0, gpu=gpu, patience_seconds=0)
    return run_rank(order, walled=walled)


def test_a_fault_that_it_causes_in_planner_is_its_own(tmp_path: Path) -> None:
    breaks = "from planner.paper.recorder import Recorder\nRecorder.repeating_events = None\n"
    (tmp_path / "train.py").write_text(breaks + TRAINS)

    with pytest.raises(ProgramError, match="a fault in planner's own code: TypeError"):
        run_behind_walls(tmp_path, "python", "train.py")


CUSTOMIZES = """
import builtins, os
builtins.task = os.read(0, 1)
"""
"""What Python runs before any program: it looks for the task on standard input."""


@pytest.mark.parametrize("path", ["{folder}", "."])
def test_what_python_runs_before_a_program_comes_after_the_task_was_taken(tmp_path: Path, path: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZES)
    (tmp_path / "train.py").write_text('import builtins\nassert builtins.task == b"", "still to be read"\n' + TRAINS)

    found = run_behind_walls(tmp_path, "env", f"PYTHONPATH={path.format(folder=tmp_path)}", "python", "train.py")

    assert found.iterations == 3


def test_its_terminal_has_80_columns(tmp_path: Path) -> None:
    asks = "import os\nassert os.popen('stty size').read().split() == ['24', '80']\n"
    (tmp_path / "train.py").write_text(asks + TRAINS)

    assert run_behind_walls(tmp_path, "python", "train.py").iterations == 3


def test_a_launcher_that_it_starts_is_to_be_given_itself(tmp_path: Path) -> None:
    (tmp_path / "launched.py").write_text(TRAINS)
    (tmp_path / "train.py").write_text("import os\nos.system('torchrun --nproc-per-node 2 launched.py')")

    with pytest.raises(ProgramError, match=r"the program starts torchrun --nproc-per-node 2 launched.py itself"):
        run_behind_walls(tmp_path, "python", "train.py", gpus=2)


SETTINGS = """mkdir -p made && echo 'batch: 4' > made/settings.yaml
cat > made/train.py <<E
assert open('made/settings.yaml').read() == 'batch: 4\\n'
E
cat step.py >> made/train.py
torchrun --nproc-per-node 2 made/train.py --config made/settings.yaml
"""


def test_what_its_script_has_written_is_there_for_a_program(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SETTINGS)
    (tmp_path / "step.py").write_text(TRAINS)

    found = run_behind_walls(tmp_path, "bash", str(tmp_path / "run.sh"))

    assert (found.iterations, (tmp_path / "made").exists()) == (3, False)
