"""What DeepSpeed's estimators of ZeRO's memory say of a job of benchmarks/peers.py, without offload.

They say parameters, gradients and optimizer states of mixed precision Adam (and, for stage 3, the largest layer);
activations, buckets and the allocator are not in them. fully_shard is what their stage 3 describes.
"""

from __future__ import annotations

import peer_models
import torch
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from peer_jobs import PeerJob
from torch.nn import Module

from planner.job.loading import load_job


def estimate(job: PeerJob) -> int:
    spec = load_job(job.spec_path)
    with torch.device("meta"):
        model = peer_models.of_spec(spec.model)
    total = sum(parameter.numel() for parameter in model.parameters())
    if spec.parallel.dp_shard.degree > 1:
        layer = max(_own_elements(module) for module in model.modules())
        _, on_gpu, _ = estimate_zero3_model_states_mem_needs(
            total, layer, num_gpus_per_node=spec.parallel.dp_shard.degree, cpu_offload=False, cpu_offload_params=False
        )
    else:
        gpus = spec.cluster.nodes * spec.cluster.gpus_per_node
        _, on_gpu = estimate_zero2_model_states_mem_needs(total, num_gpus_per_node=gpus, cpu_offload=False)
    return int(on_gpu)


def _own_elements(module: Module) -> int:
    """As deepspeed.runtime.zero.stage3.model_to_params counts a layer; that one wants parameters with addresses."""
    return sum(parameter.numel() for parameter in module.parameters(recurse=False))
