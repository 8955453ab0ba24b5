"""How long a collective takes: a start, and its bytes over the links of its group."""

from __future__ import annotations

from planner.hardware.catalog import Speed
from planner.step_work import MESSAGES, Kernel

_STARTS = ((2, 9e-6), (4, 16e-6), (8, 30e-6))
"""By ranks of a node: H100 with NVSwitch, NCCL 2.27 (meta-pytorch/autoparallel a54c2529, nccl_cost_model.py)."""
_NODE_START = 38e-6
"""For each node of a ring beside the first (the same table: 70, 146, 297 us for 2, 4, 8 nodes)."""
_SHARE = 0.8
"""Of the links that large messages reach: 345 to 363 GB/s of 450 (the same table; stas00/ml-engineering 744d01e1)."""
_IN_SWITCH = 1.3
"""How much faster an all-reduce is where the switch adds up (NVLS): 467 beside 363 GB/s, from 4 ranks and Hopper on."""
_HALF_BYTES = 4e6
"""A message of so many bytes reaches half of it (ml-engineering's table: 155 GB/s of 360 at 8 MiB)."""


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
    start = (
        next((seconds for ranks, seconds in _STARTS if in_node <= ranks), _STARTS[-1][1]) + (nodes - 1) * _NODE_START
    )
    link = speed.link_gb_s if nodes == 1 else min(speed.link_gb_s, in_node * network_gb_s)
    if name in MESSAGES:
        return start + message / (link * 1e9 * _SHARE)
    moved = message * (size - 1) / size * (2 if name.startswith("allreduce") else 1)
    reached = _SHARE * message / (message + _HALF_BYTES)
    if name.startswith("allreduce") and nodes == 1 and in_node >= 4 and speed.link_gb_s >= 400:
        reached *= _IN_SWITCH
    return start + moved / (link * 1e9 * max(reached, 1e-3))
