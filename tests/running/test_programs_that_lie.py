"""A program that does its best to be told that it fits is told the truth, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from program_runs import Run

from planner.errors import ProgramError
from planner.hardware import catalog
from planner.planning import program as programs
from planner.planning.program_ranks import RankShare
from planner.report.statement import Verdict
from planner.runtime.walls import Walls
from planner.tracing.program.launch_line import parse
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import WalledProgram, run_rank

Program = Callable[[str], str]
HONEST = """
import ctypes, os, sys, time
import torch

model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(gib):
    held = torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LARGE = """
for _ in range(4):
    step(200)
"""
SMALL_EVENTS = """
from planner.events import Alloc
def small(events):
    return [each if not isinstance(each, Alloc) else Alloc(each.block, min(each.requested_bytes, 4096), each.stream)
            for each in events]
"""
ANSWER = """
import json
from planner.events import Alloc, Free, Mark, Phase
from planner.tracing.program import attestation, rank_orders
from planner.runtime.walls import Walls
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.program.rank_process import WalledProgram, run_rank
from planner.tracing.program.rank_process import _report_of
from planner.runtime.messages import AnswerWriter
from planner.tracing import rank_trace
from planner.tracing.rank_trace import Trace
events = (Mark(Phase.FORWARD, 1), Alloc(0, 512, 0, None), Free(0))
run = RankRun(rank=0, trace=Trace(events), ending="it is small", iterations=3, seen={"eval": 0, "save": 0, "load": 0})
trace, about = rank_trace.dumps(run.trace).encode(), rank_orders.about_text(run)
def pipes():
    for name in os.listdir("/proc/self/fd"):
        try:
            if "pipe:" in os.readlink(f"/proc/self/fd/{name}") and int(name) > 2:
                yield int(name)
        except OSError:
            pass
"""
NATIVE = """
from planner.paper import library
native = library.load()
"""
RUN = """
from planner.tracing.program.on_paper import ProgramRun
frame = sys._getframe()
while not isinstance(frame.f_locals.get("run"), ProgramRun):
    frame = frame.f_back
run = frame.f_locals["run"]
"""

TRUTH = "it is told the truth"
FORGED = "the program wrote to planner's channel, or changed what planner watches it with"
OUTSIDE = "outside of the .* iterations that are judged"
WAYS: dict[str, tuple[str, str]] = {
    "it lies in nothing": (HONEST + LARGE, TRUTH),
    "it writes an answer to the channel": (
        HONEST + ANSWER + """
for pipe in pipes():
    writer = AnswerWriter(pipe)
    writer.write("trace", trace)
    writer.write("about", about)
os._exit(0)
""", FORGED),
    "it writes an answer with a seal that it made up": (
        HONEST + ANSWER + """
for pipe in pipes():
    writer = AnswerWriter(pipe)
    for name, content in (("trace", trace), ("about", about), ("seal", bytes(80)), ("tail", trace)):
        writer.write(name, content)
os._exit(0)
""", FORGED),
    "it has its own answer sealed": (
        HONEST + ANSWER + """
step(200)
seal = attestation.seal_of(_report_of(trace, about))
for pipe in pipes():
    writer = AnswerWriter(pipe)
    for name, content in (("trace", trace), ("about", about), ("seal", seal), ("tail", trace)):
        writer.write(name, content)
os._exit(0)
""", FORGED),
    "it answers before planner does": (
        HONEST + ANSWER + """
for pipe in pipes():
    AnswerWriter(pipe).write("trace", trace)
""" + LARGE, FORGED),
    "it changes what the recorder tells": (
        HONEST + SMALL_EVENTS + """
from planner.paper.recorder import Recorder
told = Recorder.repeating_events
Recorder.repeating_events = lambda *asked: (small(told(*asked)[0]), told(*asked)[1])
""" + LARGE, FORGED),
    "it changes how a trace is written": (
        HONEST + SMALL_EVENTS + """
from dataclasses import replace
from planner.tracing import rank_trace
written = rank_trace.dumps
rank_trace.dumps = lambda trace: written(replace(trace, events=tuple(small(trace.events))))
""" + LARGE, FORGED),
    "it changes what is written to the channel": (
        HONEST + """
write = os.write
os.write = lambda file, content: write(file, bytes(content).replace(str(200 << 30).encode(), b"000000000512"))
""" + LARGE, "."),
    "it stops the recorder for a while": (
        HONEST + NATIVE + """
step(1)
native.paper_stop()
held = torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
del held
native.paper_start()
for _ in range(4):
    step(1)
""", FORGED),
    "it takes memory as if something was compiled": (
        HONEST + NATIVE + """
for _ in range(4):
    native.paper_begin_compiling()
    held = torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
    del held
    native.paper_end_compiling()
    step(1)
""", OUTSIDE),
    "it writes over the recorder's memory": (
        HONEST + NATIVE + LARGE.replace("step(200)", """step(200)
    content = (ctypes.c_int64 * (native.paper_count() * 8)).from_address(native.paper_records())
    for at, number in enumerate(content):
        if number == 200 << 30:
            content[at] = 512
"""), FORGED),
    "it moves the clock": (
        HONEST + """
began = time.time()
for name in ("time", "monotonic", "perf_counter", "process_time"):
    setattr(time, name, lambda: began + 10 ** 9)
""" + LARGE, TRUTH),
    "it has a share of the GPU that there is not": (
        HONEST + RUN + "run.memory.fraction = 1000.0\n" + LARGE, FORGED),
    "it has no rank of this world": (
        HONEST + RUN + """
object.__setattr__(run._order, "rank", 7)
""" + LARGE, FORGED),
    "it ends the report before its large steps": (
        HONEST + """
from planner.tracing.program.stopping import Moments
moment_after = Moments.moment_after
Moments.moment_after = lambda self, iterations: moment_after(self, 1)
step(1)
for _ in range(4):
    loss = model(torch.ones(8, 64, device="cuda")).sum()
    held = torch.empty(200 << 30, dtype=torch.uint8, device="cuda")
    loss.backward()
    optimizer.step()
    del held
""", f"{FORGED}|{OUTSIDE}"),
    "it answers from a process beside": (
        HONEST + """
step(1)
if ctypes.CDLL(None).fork():  # CUDA is used on one side alone: it does not survive a fork
    time.sleep(1)
    step(200)
    for _ in range(4):
        step(1)
""", TRUTH),
    "it answers from a process beside that it takes for its own": (
        HONEST + RUN + """
step(1)
step(1)
if ctypes.CDLL(None).fork():
    time.sleep(30)
run._process = os.getpid()
run.end_whole("ran to its end")
""", FORGED),
    "it says that it meets nobody": (
        HONEST + """
from planner.tracing.program.peers import World
World.communicators = lambda self: ()
step(1)
step(1)
step(1)
""", FORGED),
    "it says that its GPU has other rules": (
        HONEST + """
from planner.tracing.program import gpu_statistics
gpu_statistics.LiveMemory.settle.__code__ = (lambda self, conf=None: self._allocator).__code__
for _ in range(4):
    step(1)
""", "."),
    "it says that it is over": (HONEST + "step(200)\nos._exit(0)\n", "ended its process on rank 0 with exit code 0"),
}  # fmt: skip


def verdict(run: RankRun) -> Verdict:
    known = catalog.by_name("H100-SXM-80GB")
    assert known is not None
    work = programs.inputs_of(parse(["python", "program.py"]), ["python", "program.py"], known)
    (judged,) = programs.judge_devices(work, RankShare(run, "0", untried=False))
    return judged.statement.verdict


@pytest.mark.parametrize("way", WAYS)
def test_it_is_told_the_truth_or_refused(run: Run, program: Program, way: str) -> None:
    lines, expected = WAYS[way]
    command = f"python {program(lines)}"
    if expected is TRUTH:
        found = run(command, seconds=60)
        assert verdict(found) is Verdict.EXCEEDS
        assert found.highest_bytes > 200 << 30
        return
    with pytest.raises(ProgramError, match=expected):
        verdict(run(command, seconds=60))


def test_without_a_proof_it_would_have_been_believed(run: Run, program: Program) -> None:
    """What the other tests stand on: an honest program that is small does fit."""
    small = run(f"python {program(HONEST + LARGE.replace('200', '1'))}")

    assert verdict(small) is Verdict.FITS
    assert verdict(replace(small, highest_bytes=78 << 30)) is Verdict.FITS


CUSTOMIZES = """
import builtins, os
builtins.task = os.pread(0, 1, 0)
"""
"""What Python runs before any program: it looks for the task, with the key, on standard input."""
HONEST_BEHIND_IT = """
import builtins
assert builtins.task == b"", "the task was still to be read"
"""


@pytest.mark.parametrize("path", ["{folder}", "."])
def test_what_python_runs_before_a_program_comes_after_the_key_was_given(tmp_path: Path, path: str) -> None:
    tmp_path.chmod(0o755)  # behind walls it is nobody who reads it
    (tmp_path / "sitecustomize.py").write_text(CUSTOMIZES)
    (tmp_path / "train.py").write_text(HONEST_BEHIND_IT + HONEST + "for _ in range(4):\n    step(1)\n")
    known = catalog.by_name("H100-SXM-80GB")
    assert known is not None
    gpu = Gpu(product=known.product, arch=known.arch, total_bytes=known.total_bytes, outside_bytes=2**30)
    line = parse(["env", f"PYTHONPATH={path.format(folder=tmp_path)}", "python", "train.py"])
    order = ProgramOrder(line=replace(line, folder=str(tmp_path)), rank=0, gpu=gpu, patience_seconds=0)

    found = run_rank(order, walled=WalledProgram(walls=Walls(as_root=True, place="program"), folder=str(tmp_path)))

    assert found.highest_bytes > 2**30
