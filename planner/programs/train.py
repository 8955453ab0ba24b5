"""Trains what a spec says, as one rank: `torchrun ... -m planner.programs.train BUNDLE [--shortened]`, where the bundle
is JSON as `planner spec --bundle` prints it; shortened, a long evaluation stops when the rest of it is known."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from planner.job.json_text import read_json
from planner.job.loading import load_bundle
from planner.training import step

job = load_bundle(read_json(sys.argv[1], "the bundle"), "the bundle")
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank % torch.cuda.device_count())
if int(os.environ["WORLD_SIZE"]) > 1 or job.parallel.deepspeed:  # whose engine is in a world at all times
    dist.init_process_group("cpu:gloo,cuda:nccl")  # checkpoints are saved in the background over the host

trained = step.run(job, torch.device("cuda"), rank=rank, shortened="--shortened" in sys.argv[2:])
