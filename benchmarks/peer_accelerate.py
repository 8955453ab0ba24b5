"""What `accelerate estimate-memory` says of a job of benchmarks/peers.py: its column "Training using Adam", float32.

The command takes the name of a model of a hub. Here its own functions get the very model of the job, with its head,
built without memory as the command does it. It says model, gradients and optimizer; activations are not in it.
"""

from __future__ import annotations

import peer_models
from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from peer_jobs import PeerJob


def estimate(job: PeerJob) -> int:
    with init_empty_weights():
        model = peer_models.module_of(job)
    total_bytes, _ = calculate_maximum_sizes(model)
    return int(max(estimate_training_usage(total_bytes, "float32").values()))
