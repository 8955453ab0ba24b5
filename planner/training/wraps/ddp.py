"""DistributedDataParallel with every argument of `parallel.dp_replicate`.

The reducer, its buckets and their rebuild are PyTorch's own C++ (torch/csrc/distributed/c10d/reducer.cpp). Gradients
are reduced over a process group that the caller has initialised.
"""

from __future__ import annotations

import warnings

from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from planner.job import schema
from planner.training.keyword_arguments import check_arguments

_PLACE = "parallel.dp_replicate"
_TAKEN = (
    "module", "device_ids", "output_device", "dim", "process_group", "device_mesh", "bucket_cap_mb",
    "gradient_as_bucket_view", "mixed_precision", "delay_all_reduce_named_params", "param_to_hook_all_reduce",
)  # fmt: skip
"""Arguments that say where the replicas are, are keys of their own, or take objects."""


def replicate(
    module: nn.Module, spec: schema.DpReplicate, process_group: ProcessGroup | None = None
) -> DistributedDataParallel:
    """The module, whose gradients are reduced. `process_group`: the replicas, by default the whole world."""
    arguments = check_arguments(DistributedDataParallel, spec.arguments, _PLACE, taken=_TAKEN)
    with warnings.catch_warnings():
        # torch 2.13 renames broadcast_buffers; the new name means something else for the initial sync.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers.*", category=FutureWarning)
        return DistributedDataParallel(
            module,
            process_group=process_group,
            bucket_cap_mb=spec.bucket_cap_mb,
            gradient_as_bucket_view=spec.gradient_as_bucket_view,
            **{"broadcast_buffers": True, **arguments},
        )
