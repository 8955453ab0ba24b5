"""Trains what a spec says, as one rank: `torchrun ... -m planner.programs.train BUNDLE`, where the bundle is JSON as
`planner spec --bundle` prints it. Of batches that differ in length no more than `--steps` steps are run."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

from planner.job.json_text import read_json
from planner.job.loading import load_bundle
from planner.training import step

BUNDLE = ""

parser = argparse.ArgumentParser()
parser.add_argument("bundle", nargs="?", default=BUNDLE)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
parser.add_argument("--steps", type=int, default=0)
arguments = parser.parse_args()

job, device = load_bundle(read_json(arguments.bundle, "the bundle"), "the bundle"), torch.device(arguments.device)
rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
if device.type == "cuda":
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
    # Checkpoints are saved in the background over the host.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")

trained = step.run(job, device, rank=rank, steps=arguments.steps)
