"""How long one kernel takes on a GPU: products and attention by their shapes, everything else by the bytes it moves;
collectives: a start, and their bytes over the links of their group."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from planner.hardware.gpu_records import GpuRecord, Speed
from planner.hardware.kernel_speeds import (
    KERNEL_SECONDS,
    MEMORY_SHARE,
    MEMORY_SHARES,
    SLOW_KERNELS,
    TRAINING_SHARES,
    ProductSpeed,
    attention_speed,
)
from planner.step_work import MESSAGES, Kernel

_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 128, 0.8), (64, 64, 0.6))
"""Rows, columns, and the share of the largest tile's speed that a smaller one reaches (its operands are loaded more
often)."""
_SPLITS = (1, 2, 4)
_LEAST_SPLIT = 512
"""Of the inner dimension, for each part of a product that is split along it."""
_START = 100
"""Of the inner dimension: so much longer a tile takes to fill its pipeline and to write its result."""
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation", "aten::_scaled_mm"}
_HEAD_SIZES = (32, 64, 96, 128, 192, 256)
"""For which kernels are built: a head of another size is computed as the next larger (flash-attn, torch, cuDNN)."""
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class PricedGpu:
    """What a GPU's kernels are priced by."""

    record: GpuRecord
    speed: Speed
    products: ProductSpeed

    def seconds(self, kernel: Kernel) -> float:
        """Of one launch, without the host's part."""
        moved = self.seconds_of_bytes(kernel.read_bytes + kernel.written_bytes) / SLOW_KERNELS.get(kernel.op, 1.0)
        compute = _compute_of(kernel)
        return KERNEL_SECONDS + max(moved, compute(self, kernel) if compute else 0.0)

    def least_seconds(self, kernel: Kernel) -> float:
        """What its floating-point operations take at the peak of the GPU: no kernel, and no step, takes less."""
        rate = self.product_rate(kernel.dtype, loses_bits=_loses_bits(kernel))
        share = rate / self.product_rate("bfloat16", loses_bits=True)
        return operations_of(kernel) / (max(self.speed.teraflops, self.products.bfloat16) * 1e12 * share)

    def seconds_of_bytes(self, moved_bytes: float) -> float:
        """Through the GPU's own memory."""
        share = MEMORY_SHARES.get(self.record.arch, MEMORY_SHARE)
        return moved_bytes / (self.speed.memory_gb_s * 1e9 * share)

    def product_rate(self, dtype: str, *, loses_bits: bool) -> float:
        """Operations a second of large products of numbers of a dtype; `loses_bits`: those of float32 as tfloat32."""
        cores = 1e12 * TRAINING_SHARES.get(self.record.arch, 1.0)
        if dtype in _HALF:
            return self.products.bfloat16 * cores
        if dtype.startswith("float8"):
            return 2 * self.products.bfloat16 * cores
        if dtype == "float32":
            return self.products.tfloat32 * cores if loses_bits else self.products.float32 * 1e12
        return self.products.float32 * 1e12 / 2


def _compute_of(kernel: Kernel) -> Callable[[PricedGpu, Kernel], float] | None:
    if kernel.op in _PRODUCTS or kernel.op.endswith("::gemm"):
        return _product
    if "attention" in kernel.op or "attn" in kernel.op:
        return _attention
    if "convolution" in kernel.op:
        return _convolution
    return None


def operations_of(kernel: Kernel) -> float:
    """Floating-point operations of products, attention and convolutions; of every other kernel none are counted."""
    compute = _compute_of(kernel)
    if compute is _product and (size := _product_size(kernel)) is not None:
        return 2 * math.prod(size)
    if compute is _attention and (attended := _attended(kernel)) is not None:
        return 4 * attended.rows * attended.seen * attended.size * (2.5 if attended.backward else 1)
    return _operations_of_convolution(kernel) if compute is _convolution else 0.0


def _loses_bits(kernel: Kernel) -> bool:
    """Whether tensor cores may compute what float32 goes into."""
    return _compute_of(kernel) is not _product or bool(kernel.scalars and kernel.scalars[-1])


def _product_size(kernel: Kernel) -> tuple[int, int, int, int] | None:
    """How many products there are, their rows and columns, and the dimension that is summed."""
    if not kernel.shapes or len(kernel.shapes[-1]) < 2:
        return None
    *given, out = (shape for shape in kernel.shapes if len(shape) >= 2)
    *batch, rows, columns = out
    if kernel.op.endswith("::gemm"):  # two matrices, either of them perhaps transposed, with any leading dims
        batch, rows = [], math.prod(out[:-1])
        inner = round(math.sqrt(math.prod(given[0]) * math.prod(given[1]) / math.prod(out)))
    else:
        pairs = ((left, right) for left, right in pairwise(given) if (left[-2], right[-1]) == (rows, columns))
        inner = next((left[-1] for left, right in pairs if left[-1] == right[-2]), 0)
    return math.prod(batch), rows, columns, inner


def _product(gpu: PricedGpu, kernel: Kernel) -> float:
    """By the tiles that the multiprocessors compute in waves."""
    size = _product_size(kernel)
    if size is None:
        return 0.0
    count, rows, columns, inner = size
    rate = gpu.product_rate(kernel.dtype, loses_bits=_loses_bits(kernel))
    of_one = rate / gpu.record.multiprocessors
    least = math.inf
    for tile_rows, tile_columns, share in _TILES:
        tiles = math.ceil(rows / tile_rows) * math.ceil(columns / tile_columns) * count
        for parts in _SPLITS:
            if parts > 1 and inner / parts < _LEAST_SPLIT:
                continue
            waves = math.ceil(tiles * parts / gpu.record.multiprocessors)
            seconds = waves * 2 * tile_rows * tile_columns * (inner / parts + _START) / (of_one * share)
            joined = gpu.seconds_of_bytes(2 * 4 * parts * rows * columns * count) if parts > 1 else 0.0
            least = min(least, seconds + joined)
    return least


def _convolution(gpu: PricedGpu, kernel: Kernel) -> float:
    return _operations_of_convolution(kernel) / gpu.product_rate(kernel.dtype, loses_bits=True)


def _operations_of_convolution(kernel: Kernel) -> float:
    """As products of the same operations: one, and two backward (of its input and of its weight)."""
    if len(kernel.shapes) < 3:
        return 0.0
    backward = "backward" in kernel.op
    weight, out = (kernel.shapes[2], kernel.shapes[0]) if backward else (kernel.shapes[1], kernel.shapes[-1])
    return 2.0 * math.prod(out) * math.prod(weight[1:]) * (2 if backward else 1)


@dataclass(frozen=True, slots=True)
class _Attended:
    """What attention computes: rows of queries with heads of a size, and how many keys each sees, on average."""

    name: str
    rows: float
    seen: float
    size: int
    backward: bool


def _attended(kernel: Kernel) -> _Attended | None:
    """Half of the square under a causal mask, less within a window."""
    of_heads = [shape for shape in kernel.shapes[:3] if len(shape) in (3, 4)]
    if len(of_heads) < 2:
        return None
    query, key = of_heads[0], of_heads[-1]
    # (batch, sequence, heads, size), of several lengths without batch; cuDNN's: (batch, heads, sequence, size).
    keys = key[-3] if any(name in kernel.op for name in _HEADS_LAST) else key[-2]
    causal = _is_causal(kernel)
    if "paper_flash_attn_3" in kernel.op:
        name, (_, longest, _, left, *_) = "flash_3", kernel.scalars
        keys = min(keys, longest)
        seen = keys / 2 if causal else keys
        if left >= 0:
            seen = min(seen, left)
    else:
        name = "cudnn" if "cudnn" in kernel.op or "fused_attn" in kernel.op else "flash_2"
        seen = keys / 2 if causal else keys
    size = query[-1]
    return _Attended(name, math.prod(query) / size, seen, size, "backward" in kernel.op or "bwd" in kernel.op)


def _attention(gpu: PricedGpu, kernel: Kernel) -> float:
    """Two products forward, five backward."""
    attended = _attended(kernel)
    if attended is None:
        return 0.0
    speed = attention_speed(gpu.record.arch, attended.name)
    share = speed.backward if attended.backward else speed.forward
    share *= attended.seen / (attended.seen + speed.half_length) * (speed.heads_of_64 if attended.size <= 64 else 1.0)
    padding = next((padded for padded in _HEAD_SIZES if attended.size <= padded), attended.size) / attended.size
    return operations_of(kernel) * padding / (gpu.product_rate(kernel.dtype, loses_bits=True) * share)


_HEADS_LAST = ("flash_attn", "aten::_flash_attention", "aten::_efficient_attention")
_CAUSAL_AT = {
    "aten::_flash_attention_forward": 2, "aten::_flash_attention_backward": 2,
    "aten::_efficient_attention_forward": 0, "aten::_efficient_attention_backward": 2,
    "aten::_cudnn_attention_forward": 3, "aten::_cudnn_attention_backward": 2,
    "transformer_engine::fused_attn_fwd": 0, "transformer_engine::fused_attn_bwd": 0,
    "flash_attn::fwd": 0, "flash_attn::bwd": 0, "flash_attn::varlen_fwd": 3, "flash_attn::varlen_bwd": 3,
    "flash_attn::_flash_attn_forward": 0, "flash_attn::_flash_attn_backward": 0,
    "flash_attn::_flash_attn_varlen_forward": 2, "flash_attn::_flash_attn_varlen_backward": 2,
    "paper_flash_attn_3::forward": 2,
    "paper_flash_attn_3::backward": 2,
}  # fmt: skip
"""Where among the scalars of an operator it says whether its mask is causal (torch 2.13, native_functions.yaml)."""


def _is_causal(kernel: Kernel) -> bool:
    at = _CAUSAL_AT.get(kernel.op)
    return True if at is None or not kernel.scalars else bool(kernel.scalars[at])


# By nccl-tests of NCCL 2.27 and 2.29 on A100, H100, H200 and B200 with 2, 4 and 8 GPUs, 512 B to 512 MiB
# (ai-dynamo/aiconfigurator 095f58a5, comm/nccl).
_COLLECTIVE_START, _REDUCING_START = 12e-6, 18e-6
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
    start = (_REDUCING_START if "reduce" in name else _COLLECTIVE_START) + (nodes - 1) * _NODE_START
    link = speed.link_gb_s if nodes == 1 else min(speed.link_gb_s, in_node * network_gb_s)
    share = next((share for ranks, share in _SHARES if in_node <= ranks), _SHARES[-1][1])
    if name in MESSAGES:
        return start + message / (link * 1e9 * share)
    moved = message * (size - 1) / size
    if name.startswith("allreduce"):
        moved *= 2
        share *= _IN_SWITCH if nodes == 1 and size >= 8 and speed.link_gb_s == _HOPPER_LINK else 1
    return start + moved * (1 + _HALF_BYTES / max(message, 1)) / (link * 1e9 * share)
