"""DistributedDataParallel with every argument of `parallel.dp_replicate`.

The reducer, its buckets and their rebuild are PyTorch's own C++ (torch/csrc/distributed/c10d/reducer.cpp). Gradients
are reduced over a process group that the caller has initialised.
"""

from __future__ import annotations

import warnings

from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

from planner.job import schema
from planner.training.keyword_arguments import check_arguments

_PLACE = "parallel.dp_replicate"
_TAKEN = (
    "module", "device_ids", "output_device", "dim", "process_group", "device_mesh", "bucket_cap_mb",
    "gradient_as_bucket_view", "mixed_precision", "delay_all_reduce_named_params", "param_to_hook_all_reduce",
)  # fmt: skip
"""Arguments that say where the replicas are, are keys of their own, or take objects."""
_POWER_SGD_STARTS = 2
"""Iterations before PowerSGD compresses, the fewest that it takes (powerSGD_hook.py). A program waits for a thousand;
what it will hold from then on, errors as large as the gradients among it, has to be in a plan of a few iterations."""


def fewest_iterations(spec: schema.DpReplicate) -> int:
    """How many iterations show all that the job will hold: the one after the first that has everything."""
    return _POWER_SGD_STARTS + 2 if spec.degree > 1 and spec.comm_hook == "power_sgd" else 0


def replicate(
    module: nn.Module, spec: schema.DpReplicate, process_group: ProcessGroup | None = None
) -> DistributedDataParallel:
    """The module, whose gradients are reduced. `process_group`: the replicas, by default the whole world."""
    arguments = check_arguments(DistributedDataParallel, spec.arguments, _PLACE, taken=_TAKEN)
    with warnings.catch_warnings():
        # torch 2.13 renames broadcast_buffers; the new name means something else for the initial sync.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers.*", category=FutureWarning)
        model = DistributedDataParallel(
            module,
            process_group=process_group,
            bucket_cap_mb=spec.bucket_cap_mb,
            gradient_as_bucket_view=spec.gradient_as_bucket_view,
            **{"broadcast_buffers": True, **arguments},
        )
    if spec.comm_hook == "power_sgd":
        state = power_sgd.PowerSGDState(process_group=None, start_powerSGD_iter=_POWER_SGD_STARTS)
        model.register_comm_hook(state, power_sgd.powerSGD_hook)
    elif spec.comm_hook in ("fp16_compress", "bf16_compress"):
        model.register_comm_hook(None, getattr(default_hooks, f"{spec.comm_hook}_hook"))
    return model
