"""A program and a spec of the same job: the same peak, to a thousandth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from program_runs import Program, Run

from planner.job.launching.line import parse
from planner.job.layout import RankClass
from planner.job.named_gpus import look_up
from planner.job.rank_sets import RankSet
from planner.job.schema import Cluster, Job, Model
from planner.planning.inputs import inputs_of
from planner.planning.judging import RankTrace, judge_devices, judge_trace
from planner.planning.program_ranks import RankShare
from planner.truth.calibration.interval import Calibration

STEPS = """
import torch

class First(torch.nn.Module):
    def forward(self, results):
        return results[0]

model = {model}.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(64, 3, 32, 32).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        ("torch.nn.Conv2d(3, 8, 3)", ()),  # cuDNN itself is asked
        ("torch.nn.Sequential(torch.nn.Flatten(2), torch.nn.RNN(1024, 8), First())", ("cuDNN recurrent network",)),
    ],
    ids=["convolutions", "recurrent network"],
)
def test_one_trace_is_judged_alike(run: Run, program: Program, model: str, unknown: tuple[str, ...]) -> None:
    """As a program and as a spec: of both kinds recorded runs were off otherwise, so that their intervals differ."""
    command, gpu, none = f"python {program(STEPS.format(model=model))}", look_up("H100-SXM-80GB"), Calibration.none()
    found = run(command, steps=2)
    work = inputs_of(parse(command.split()), command.split(), gpu, calibration=none)
    job = Job(model=Model(), cluster=Cluster(gpu=work.gpu), software=work.software)

    (judged,) = judge_devices(work, RankShare(found, RankClass(0, RankSet.world(1), {})))
    as_spec = judge_trace(job, RankTrace(RankClass(0, RankSet.world(1), {}), found.trace), none).statement

    program_kind, spec_kind = judged.statement.kind, as_spec.kind
    assert (program_kind.program, spec_kind.program) == (True, False)
    assert replace(program_kind, program=False) == spec_kind
    assert replace(judged.statement.peak, interval_bytes=as_spec.peak.interval_bytes) == as_spec.peak
    assert found.trace.unknown_workspaces == unknown
