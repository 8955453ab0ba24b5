"""What a job is called, from its bundle."""

from __future__ import annotations

import json

import pytest

from planner.job.loading import bundle
from planner.job.schema import Cluster, Decoder, DpReplicate, Gpu, Job, Metadata, Model, Parallel, Tp, Train
from planner.report.style import Style
from planner.report.verdict_text import describe, gpu_of, name_of

DECODER = Decoder(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
H100 = Gpu(name="H100-SXM-80GB", total_bytes=79 << 30, arch="sm_90")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            Job(
                metadata=Metadata(name="llama"),
                model=Model(decoder=DECODER),
                train=Train(micro_batch_size=2, sequence_length=8192, precision="bf16_autocast"),
                parallel=Parallel(dp_replicate=DpReplicate(degree=16), tp=Tp(degree=2)),
                cluster=Cluster(nodes=4, gpus_per_node=8, gpu=H100),
            ),
            [
                "decoder 32 × 4096",
                "micro-batch 2 × 8192, bf16_autocast, AdamW",
                "dp_replicate 16, tp 2",
                "32 × H100-SXM-80GB on 4 nodes",
            ],
        ),
        (
            Job(
                model=Model(hf_config={"architectures": ["ResNetForImageClassification"]}),
                cluster=Cluster(gpu=Gpu(total_bytes=1 << 30, arch="sm_90")),
            ),
            ["ResNetForImageClassification", "micro-batch 1, AdamW", "one process", "sm_90"],
        ),
        (
            Job(model=Model(factory="my_pkg.models:build")),
            ["my_pkg.models:build", "micro-batch 1, AdamW", "one process", "GPU"],
        ),
    ],
    ids=["decoder", "transformers", "factory"],
)
def test_a_job_is_described_by_model_step_layout_and_gpus(job: Job, said: list[str]) -> None:
    assert describe(json.loads(json.dumps(bundle(job))), Style()) == said


def test_names_of_job_and_gpu_come_from_the_bundle() -> None:
    named = bundle(Job(metadata=Metadata(name="sft"), model=Model(decoder=DECODER), cluster=Cluster(gpu=H100)))

    assert (name_of(named), gpu_of(named)) == ("sft", "H100-SXM-80GB")
    assert (name_of({}), gpu_of({})) == ("unnamed job", "GPU")
