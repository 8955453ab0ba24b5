"""`planner spec --program`: the program that it prints trains by itself, and keeps what the plan of its spec says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from planner.events import Alloc, Free, Mark, Phase, Role
from planner.job.loading import load_yaml
from planner.job.schema import Job
from planner.planning.trace_source import USUAL_SOURCE
from planner.programs import program_text

MODEL = "model: {decoder: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}}\n"
TRAIN = "train: {micro_batch_size: 1, sequence_length: 32, optimizer: {name: AdamW}, gradient_accumulation_steps: 2}\n"
CLUSTER = "cluster: {nodes: 1, gpus_per_node: 2, gpu: A100-SXM-40GB}\n"
COUNTING = '''
"""Runs a program and writes for its rank what each of its optimizer's steps leaves behind, the most of it."""
import json, os, runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook

most = {"parameter": 0, "gradient": 0, "optimizer_state": 0}

def count(tensors):
    local = [each._local_tensor if hasattr(each, "_local_tensor") else each for each in tensors]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in local if each.dim()}
    return sum(storages.values())

def look(optimizer, *_):
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    states = [each for state in optimizer.state.values() for each in state.values()]
    # A view of a bucket is of the bucket's memory.
    gradients = [each.grad for each in parameters if each.grad._base is None]
    for name, tensors in zip(most, (parameters, gradients, states)):
        most[name] = max(most[name], count(tensors))

register_optimizer_step_post_hook(look)
_, program, answers = sys.argv
sys.argv = [program]
trained = runpy.run_path(program, run_name="__main__")["trained"]
account = getattr(trained.model, "_get_ddp_logging_data", dict)()
most["bucket"] = sum(int(size) for size in str(account.get("rebuilt_bucket_sizes", 0)).split(","))
with open(f"{answers}.{os.environ['RANK']}", "w") as answer:
    json.dump(most, answer)
'''


def planned(job: Job, rank: int) -> dict[str, int]:
    """The most bytes of each category that the rank of a plan has during an optimizer's step."""
    events, most = USUAL_SOURCE.trace_rank(job, rank).written_out(), Counter[str]()
    sizes: dict[int, int] = {}
    categories: dict[int, str] = {}
    in_step = False
    for event in events:
        match event:
            case Alloc():
                sizes[event.block] = event.requested_bytes
            case Role():
                categories[event.block] = event.category.value
            case Free():
                categories.pop(event.block, None)
            case Mark():
                in_step = event.phase is Phase.OPTIMIZER_STEP
        if in_step:
            now = Counter[str]()
            for block, category in categories.items():
                now[category] += sizes[block]
            most |= now
    return {name: most[name] for name in ("parameter", "gradient", "optimizer_state", "bucket")}


def trained(job: Job, folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks of the printed program keeps, trained on this CPU over gloo."""
    program, counting = folder / "job.py", folder / "counting.py"
    program.write_text(program_text(job))
    counting.write_text(COUNTING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run([*torchrun, str(counting), str(program), str(folder / "kept")], check=True, capture_output=True)
    return [json.loads((folder / f"kept.{rank}").read_text()) for rank in range(2)]


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

    assert trained(job, tmp_path) == [planned(job, rank) for rank in range(2)]
