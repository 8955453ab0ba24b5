"""Trains what a spec says, as one rank: `torchrun ... -m planner.programs.train BUNDLE`, where the bundle is JSON as
`planner spec --bundle` prints it. Without a GPU it trains on the CPU. `--shortened` leaves out the end of a long
evaluation."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from planner.job.json_text import read_json
from planner.job.loading import load_bundle
from planner.training import step

BUNDLE = sys.argv[1]

job = load_bundle(read_json(BUNDLE, "the bundle"), "the bundle")
rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
has_gpu = torch.cuda.is_available()
if has_gpu:
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
if int(os.environ.get("WORLD_SIZE", 1)) > 1 or job.parallel.deepspeed:  # whose engine is in a world at all times
    # Checkpoints are saved in the background over the host.
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")

device = torch.device("cuda" if has_gpu else "cpu")
trained = step.run(job, device, rank=rank, shortened="--shortened" in sys.argv)
