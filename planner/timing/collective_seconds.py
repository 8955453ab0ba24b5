"""How long a collective takes: a start, and its bytes over the links of its group."""

from __future__ import annotations

from planner.hardware.catalog import Speed
from planner.step_work import MESSAGES, Kernel

# By nccl-tests of NCCL 2.27 and 2.29 on A100, H100, H200 and B200 with 2, 4 and 8 GPUs, 512 B to 512 MiB
# (ai-dynamo/aiconfigurator 095f58a5, comm/nccl).
_START, _REDUCING_START = 12e-6, 18e-6
_SHARES = ((2, 0.57), (4, 0.68), (8, 0.76))
"""Of the links that messages of 512 MiB reach, by ranks of a node."""
_IN_SWITCH = 1.3
"""How much faster an all-reduce of eight ranks is where the switch of Hopper adds up (NVLS)."""
_HOPPER_LINK = 450
"""GB/s each way of the GPUs whose switch does so (NVLink 4)."""
_HALF_BYTES = 2e6
"""A message of so many bytes reaches half of it."""
_NODE_START = 38e-6
"""For each node beside the first (meta-pytorch/autoparallel a54c2529, nccl_cost_model.py: 70, 146, 297 us for rings of
2, 4, 8 nodes)."""


def seconds_of_collective(kernel: Kernel, speed: Speed, gpus_per_node: int, network_gb_s: float) -> float:
    """Of one on the stream of its communicator, once all ranks have come.

    `network_gb_s`: of each GPU between nodes, one way.
    """
    size, stride, *_ = kernel.scalars
    name, message = kernel.op.removeprefix("nccl::"), kernel.read_bytes
    if size < 2:
        return 0.0
    nodes = -(-((size - 1) * max(stride, 1) + 1) // gpus_per_node)
    in_node = max(size // nodes, 1)
    start = (_REDUCING_START if "reduce" in name else _START) + (nodes - 1) * _NODE_START
    link = speed.link_gb_s if nodes == 1 else min(speed.link_gb_s, in_node * network_gb_s)
    share = next((share for ranks, share in _SHARES if in_node <= ranks), _SHARES[-1][1])
    if name in MESSAGES:
        return start + message / (link * 1e9 * share)
    moved = message * (size - 1) / size
    if name.startswith("allreduce"):
        moved *= 2
        share *= _IN_SWITCH if nodes == 1 and size >= 8 and speed.link_gb_s == _HOPPER_LINK else 1
    return start + moved * (1 + _HALF_BYTES / max(message, 1)) / (link * 1e9 * share)
