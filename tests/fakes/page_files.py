"""The files that commands of README.md and docs/ name, all of small jobs, so that each is planned or run in seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch_messages import alloc_conf

from planner.events import Alloc, Phase
from planner.report.memory_viz import write_snapshot
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import DeviceFacts, Levels, MeasuredPhase, Measurement
from planner.units import GIB, MIB

REPOSITORY = Path(__file__).parents[2]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
PROGRAM = """
import os
import torch

device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
model = torch.nn.Linear(256, 256, device=device)
if "WORLD_SIZE" in os.environ:
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl")
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):  # a run is steady after three
    model(torch.randn(32, 256, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
TITAN = """
[model]
name = "llama3"
flavor = "debugmodel"
[training]
local_batch_size = 1
seq_len = 512
"""
FACTORY = """
model_name_or_path: tiny
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
template: llama3
cutoff_len: 512
per_device_train_batch_size: 1
bf16: true
"""
OUT_OF_MEMORY = alloc_conf(
    {"device": 0, "tried": "500.00 MiB", "total": "1.00 GiB", "free": "124.00 MiB", "allocated": "900.00 MiB",
     "unallocated": "0 bytes"}
)  # fmt: skip
TEXTS = {
    "train.py": PROGRAM,
    "…": "print('trained')",  # the program of a command that says no more
    "c.toml": "",
    "config.json": json.dumps(CONFIG),
    "tiny/config.json": json.dumps(CONFIG),
    "args.json": json.dumps({"per_device_train_batch_size": 1, "bf16": True}),
    "accelerate.yaml": ACCELERATE,
    "llama3_8b.toml": TITAN,
    "lora_sft.yaml": FACTORY,
    "train.log": f"step 246\n{OUT_OF_MEMORY}\n",
}


def write_files(folder: Path, page: str) -> None:
    """All of them, README's job and the examples: what `page` says is there."""
    for name, text in {**TEXTS, "job.yaml": _job_of(page)}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    failed = [Alloc(0, 600 * MIB), Alloc(1, 300 * MIB), Alloc(2, 500 * MIB)]
    write_snapshot(folder / "oom.pickle", failed, capacity_bytes=GIB)
    measurement_lines.append(folder / "measurements.jsonl", _measured())
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    (folder / ".venv").symlink_to(sys.prefix)


def _job_of(page: str) -> str:
    """README's; a slice of a GPU is asked for by one rank."""
    job = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("$ cat job.yaml\n")[2].partition("$ ")[0]
    if page == "docs/parts-of-gpus.md":
        return job.replace("{dp_shard: {degree: 8}}", "{}").replace("gpus_per_node: 8", "gpus_per_node: 1")
    return job


def _measured() -> list[Measurement]:
    levels = Levels(requested_bytes=MIB, allocated_bytes=MIB, active_bytes=MIB, reserved_bytes=2 * MIB)
    whole = MeasuredPhase(phase=Phase.LOAD, iteration=0, peak=levels, end=levels)
    return [
        Measurement(
            case="", command=("torchrun", "--nproc-per-node", "8", "train.py"), software={}, date="2026-11-29",
            device=DeviceFacts(kind="cuda", name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{rank}", total_bytes=79 * GIB),
            phases=(whole,), rank=rank, world_size=8, peers="present",
        )
        for rank in range(8)
    ]  # fmt: skip
