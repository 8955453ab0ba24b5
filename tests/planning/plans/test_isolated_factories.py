"""A factory's program runs in a process of its own: it may loop, eat memory, exit or print, and planner goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runtime_children import all_end
from stopped_clock import LimitClock

from planner.errors import SpecError, TraceError
from planner.job.schema import Cluster, Gpu, Input, Job, Model, Train
from planner.planning import trace_source
from planner.planning.plan import plan_job
from planner.planning.trace_source import TraceSource
from planner.runtime import running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limits
from planner.tracing.isolated import Isolation, trace_isolated
from planner.tracing.job_program import trace
from planner.units import GIB, MIB

FACTORIES = """
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent

def mlp(width=16):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

def loops():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (HERE / "started.tmp").write_text(f"{os.getpid()} {child.pid}")
    (HERE / "started.tmp").rename(HERE / "started")
    while True:
        time.sleep(0.01)

def eats():
    hoard = []
    while True:
        hoard.append(bytearray(b"x" * 2**24))

def leaves():
    print("no data here")
    sys.exit(0)

def crashes():
    os.abort()

def prints(width):
    print("hello from the factory")
    os.system("echo hello from its shell")
    return mlp(width)

def large():
    with torch.device("cuda"):
        return nn.Sequential(nn.Linear(16, 2**16), nn.Linear(2**16, 2**16), nn.Linear(2**16, 4))

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 4)

    def forward(self, x):
        return self.body(x if x.mean() > 0 else -x)
"""
ROWS = {"x": Input(shape=(16,)), "labels": Input(shape=(), dtype="int64", maximum=4)}
H100 = Gpu(name="H100-SXM-80GB", total_bytes=80 * GIB, arch="sm_90")


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., Job]:
    (tmp_path / "harmful.py").write_text(FACTORIES)

    def build(name: str, **arguments: Any) -> Job:
        model = Model(factory=f"harmful:{name}", factory_arguments=arguments, factory_path=str(tmp_path))
        train = Train(micro_batch_size=4, inputs=ROWS, iterations=2)
        return Job(model=model, train=train, cluster=Cluster(gpu=H100))

    return build


JobOf = Callable[..., Job]


@pytest.fixture
def refusal(server: ForkServer) -> Callable[..., str]:
    """In a child that has PyTorch loaded; one test takes a fresh interpreter, which is the other way."""

    def refuse(job: Job, **limits: Any) -> str:
        with pytest.raises(SpecError) as caught:
            trace_isolated(job, isolation=Isolation(limits=Limits(**limits)), server=server)
        return str(caught.value)

    return refuse


Refusal = Callable[..., str]


def test_it_does_there_what_it_does_here_whatever_it_prints_and_wherever_it_is_started(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = trace(job_of("mlp", width=16))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "torch.py").write_text("raise SystemExit('the wrong torch')")
    monkeypatch.chdir(elsewhere)
    before = dict(os.environ), list(sys.path), set(sys.modules)

    there = trace_isolated(job_of("prints", width=16))

    assert (there.events, there.buckets) == (here.events, here.buckets)
    assert capfd.readouterr() == ("", "")
    assert (dict(os.environ), list(sys.path), set(sys.modules)) == before


def test_one_that_loops_is_ended_at_its_time_with_all_that_it_started(
    job_of: JobOf, refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "time", LimitClock((tmp_path / "started").exists))

    said = refusal(job_of("loops"), seconds=600)

    assert said == (
        "model.factory: harmful:loops was not traced within 600 s\n"
        "  allowed: at most 600 s from its start to the end of its step\n"
        "  change:  see whether the factory loops or loads data; it has to return the module only"
    )
    assert all_end([int(process) for process in (tmp_path / "started").read_text().split()])


def test_one_that_eats_memory_is_ended(job_of: JobOf, refusal: Refusal) -> None:
    assert refusal(job_of("eats"), memory_bytes=1500 * MIB) == (
        "model.factory: harmful:eats takes more than 1.46 GiB of the host's memory\n"
        "  allowed: at most 1.46 GiB resident\n"
        "  change:  load no data in the factory, and build a large module under `with torch.device('cuda')`: "
        "on paper it takes no memory"
    )


def test_a_large_module_built_on_the_device_takes_no_memory_of_the_host(job_of: JobOf, server: ForkServer) -> None:
    limits = Limits(memory_bytes=2 * GIB)
    traced = trace_isolated(job_of("large"), isolation=Isolation(limits=limits), server=server)

    assert max(getattr(event, "requested_bytes", 0) for event in traced.events) == 4 * 2**32


def test_one_that_exits_has_not_answered_whatever_its_code(job_of: JobOf, refusal: Refusal) -> None:
    assert refusal(job_of("leaves")) == (
        "model.factory: harmful:leaves ended its process with exit code 0: no data here\n"
        "  allowed: a callable that returns an nn.Module\n"
        "  change:  run the factory by itself and see where it ends"
    )


def test_one_that_crashes_is_told_with_its_signal(job_of: JobOf, refusal: Refusal) -> None:
    assert "harmful:crashes ended its process with signal SIGABRT" in refusal(job_of("crashes"))


def test_control_flow_on_values_is_told_with_module_and_line(job_of: JobOf, server: ForkServer) -> None:
    with pytest.raises(TraceError) as caught:
        trace_isolated(job_of("Gated"), server=server)

    line = next(i for i, text in enumerate(FACTORIES.splitlines(), 1) if "x.mean() > 0" in text)
    assert str(caught.value) == (
        "the program reads a value of a tensor of shape () and dtype bool "
        f"at harmful.py:{line} in Gated.forward (module Gated): planner does not compute values\n"
        "  allowed: control flow that does not depend on values of device tensors\n"
        "  change:  keep such decisions on the host, or plan this model with a variant that does not take them"
    )


def test_a_plan_of_a_factory_runs_it_in_its_own_process_under_the_limits_given(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Isolation] = []

    def watched(job: Job, rank: int, isolation: Isolation) -> Any:
        seen.append(isolation)
        return trace(job, rank)

    monkeypatch.setattr(trace_source, "trace_isolated", watched)

    given = Isolation(limits=Limits(seconds=1, memory_bytes=2))
    plan_job(job_of("mlp"), source=TraceSource(given))

    assert seen == [given]
