"""What the fixtures of the running programs' tests are, for annotations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from standard_error import without_progress

from planner import cli
from planner.allocator.replay import replay
from planner.allocator.timeline import Timeline
from planner.events import write_out_repeats
from planner.job.launching.line import parse
from planner.job.named_gpus import look_up
from planner.job.schema import Gpu
from planner.planning.inputs import inputs_of
from planner.planning.judging import told_on
from planner.planning.plan import plan_program
from planner.report.statement import Plan
from planner.runtime.limits import Limits
from planner.runtime.walled_program import WalledProgram
from planner.tracing.program import rank_process
from planner.tracing.program.rank_orders import ProgramOrder, RankRun
from planner.tracing.rank_trace import Trace

Run = Callable[..., RankRun]
"""Runs a command as one rank of its world; `{programs}` in it is the folder of the tests' programs, `{beside}` that of
the packages of tests/tracing/running/beside.txt."""
BESIDE = Path(sys.prefix, "beside")
Program = Callable[[str], str]
"""Writes a program of these lines; its path."""
STEP = """
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.zeros(2, 4, device="cuda")).sum().backward()
optimizer.step()
"""


def replay_on_h100(trace: Trace) -> Timeline:
    """What the allocator of an H100 does, on which what is given up is free once the GPU has passed it."""
    told = told_on(Gpu(name="H100-SXM-80GB", arch="sm_90", total_bytes=80 << 30), 8, trace)
    return replay(list(write_out_repeats(told.events, told.repeats)))


@contextmanager
def forked_ranks() -> Iterator[None]:
    """Whatever runs ranks has them forked by the tests' own server, which has loaded PyTorch already."""
    real, server = rank_process.run_rank, rank_process.lasting_server()

    def run_rank(
        order: ProgramOrder, limits: Limits, _: object = None, walled: WalledProgram | None = None, *heard: Any
    ) -> RankRun:
        return real(order, limits, server if walled is None else None, walled, *heard)

    with mock.patch.object(rank_process, "run_rank", run_rank):
        yield


def run_planner(capfd: pytest.CaptureFixture[str], *words: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, its ranks forked; what is said of progress is left out."""
    with forked_ranks():
        code = cli.main(list(words))
    out, err = capfd.readouterr()
    return subprocess.CompletedProcess(words, code, out, without_progress(err))


def judge(*words: str, gpu: str = "H100-SXM-80GB", node_gpus: int = 0, **asked: Any) -> Plan:
    """What `planner run` says of a command on so many of these GPUs."""
    found = look_up(gpu)
    assert found is not None
    with forked_ranks():
        return plan_program(inputs_of(parse(words, node_gpus=node_gpus), words, found, **asked)).plan
