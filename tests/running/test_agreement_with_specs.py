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
    {{architectures: [LlamaForCausalLM], model_type: llama, vocab_size: {vocabulary}, hidden_size: {width},
      intermediate_size: {hidden}, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
      max_position_embeddings: 128}}
  parameter_dtype: {dtype}
train:
  {{micro_batch_size: 4, sequence_length: {length}, precision: {precision}, gradient_clipping: {clipping},
    iterations: 3, optimizer: {{name: AdamW}}, loss: {loss}}}
parallel: {{{parallel}}}
cluster: {{gpu: H100-SXM-80GB, gpus_per_node: {gpus}}}
"""
AS_USUAL = {"dtype": "float32", "clipping": "1.0", "loss": "{name: model}"}
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
SMALL = {"vocabulary": 512, "width": 128, "hidden": 256, "length": 64, "precision": "bf16_autocast"}
LARGER = {"vocabulary": 2048, "width": 256, "hidden": 512, "length": 128, "gpus": 4}


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        ("python {programs}/fine_tune.py", {**SMALL, "parallel": "", "gpus": 1}),
        (
            "torchrun --nproc-per-node 4 {programs}/in_a_world.py ddp",
            {**LARGER, "precision": "bf16_autocast", "parallel": "dp_replicate: 4"},
        ),
        (
            "torchrun --nproc-per-node 4 {programs}/in_a_world.py fsdp",
            {**LARGER, "precision": "fsdp_mixed", "parallel": "dp_shard: 4"},
        ),
        (
            "python {programs}/head_in_chunks.py",
            {
                **SMALL,
                "parallel": "",
                "gpus": 1,
                "vocabulary": 4096,
                "precision": "none",
                "dtype": "bfloat16",
                "clipping": "0.0",
                "loss": "{chunks: 4, chunk_head: true, keep_output: true}",
            },
        ),
    ],
    ids=["transformers Trainer", "DDP", "FSDP2", "a head in chunks"],
)
def test_they_agree(run: Run, tmp_path: Path, command: str, spec: dict[str, object]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SPEC.format(**{**AS_USUAL, **spec}))

    ran = replay_on_h100(run(command).trace)
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
