"""A program and a spec of the same job: the same peak, to a thousandth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from program_runs import Program, Run, replay_on_h100

from planner.job.launching.line import parse
from planner.job.layout import RankClass
from planner.job.loading import load_job
from planner.job.named_gpus import look_up
from planner.job.rank_sets import RankSet
from planner.job.schema import Cluster, Job, Model
from planner.planning.job_plan import plan_job
from planner.planning.judging import RankTrace, judge_trace
from planner.planning.program import inputs_of, judge_devices
from planner.planning.program_ranks import RankShare
from planner.truth.calibration.interval import Calibration

SPEC = """
model:
  hf_config:
    {architectures: [LlamaForCausalLM], model_type: llama, vocab_size: 4096, hidden_size: 128, intermediate_size: 256,
      num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}
  parameter_dtype: bfloat16
train:
  {micro_batch_size: 4, sequence_length: 64, iterations: 3, optimizer: {name: AdamW},
    loss: {chunks: 4, chunk_head: true, keep_output: true}}
cluster: {gpu: H100-SXM-80GB}
"""
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


def test_a_head_in_chunks_takes_what_its_spec_says(run: Run, tmp_path: Path) -> None:
    """Other programs are planned by the specs that their runs save (test_saved_specs.py)."""
    path = tmp_path / "job.yaml"
    path.write_text(SPEC)

    ran = replay_on_h100(run("python {programs}/head_in_chunks.py").trace)
    planned = plan_job(load_job(path)).plan.rank_classes[0].peak

    assert ran.peak_allocated_bytes == pytest.approx(planned.allocated_bytes, rel=0.001)
    assert ran.peak_reserved_bytes == pytest.approx(planned.reserved_bytes, abs=2 << 20)


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

    (judged,) = judge_devices(work, RankShare(found, "0", untried=False))
    as_spec = judge_trace(job, RankTrace(RankClass(0, RankSet.world(1), {}), found.trace), none).statement

    program_kind, spec_kind = judged.statement.kind, as_spec.kind
    assert (program_kind.program, spec_kind.program) == (True, False)
    assert replace(program_kind, program=False) == spec_kind
    assert replace(judged.statement.peak, interval_bytes=as_spec.peak.interval_bytes) == as_spec.peak
    assert found.trace.unknown_workspaces == unknown
