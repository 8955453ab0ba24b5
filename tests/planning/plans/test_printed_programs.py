"""`planner spec --program`: the program that it prints trains by itself, and keeps what the plan of its spec says."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_bytes import most_kept, trained

from planner.job.loading import load_yaml
from planner.planning.trace_source import USUAL_SOURCE
from planner.programs.launching import program_text

MODEL = "model: {decoder: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}}\n"
TRAIN = "train: {micro_batch_size: 1, sequence_length: 32, optimizer: {name: AdamW}, gradient_accumulation_steps: 2}\n"
CLUSTER = "cluster: {nodes: 1, gpus_per_node: 2, gpu: A100-SXM-40GB}\n"


@pytest.mark.parametrize(
    "parallel",
    [
        "dp_replicate: {degree: 2}",
        "dp_replicate: {degree: 2, gradient_as_bucket_view: true}",
        "dp_shard: {degree: 2}",
        "tp: {degree: 2}",
    ],
)
def test_it_keeps_what_is_planned(parallel: str, tmp_path: Path) -> None:
    job = load_yaml(f"{MODEL}{TRAIN}parallel: {{{parallel}}}\n{CLUSTER}", "job.yaml")

    program = tmp_path / "job.py"
    program.write_text(program_text(job))

    planned = [most_kept(USUAL_SOURCE.trace_rank(job, rank).written_out()) for rank in range(2)]

    assert trained(program, tmp_path) == planned
