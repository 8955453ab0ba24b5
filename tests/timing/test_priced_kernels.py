"""Kernels beside what others measured, and what decides about their time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.hardware import catalog
from planner.hardware.kernel_speeds import TRAINING_SHARES, product_speed
from planner.step_work import Kernel, Launch, LaunchKind, StepWork
from planner.timing.kernel_seconds import PricedGpu, operations_of, seconds_of_collective
from planner.timing.step_time import time_step


def gpu(name: str = "H100-SXM-80GB") -> PricedGpu:
    record, speed = catalog.by_name(name), catalog.speed_of(name)
    assert record is not None
    assert speed is not None
    products = product_speed(record)
    assert products is not None
    return PricedGpu(record, speed, products)


def product(rows: int, columns: int, inner: int, dtype: str = "bfloat16", **fields: object) -> Kernel:
    shapes = ((rows, inner), (inner, columns), (rows, columns))
    moved = 2 * (rows * inner + inner * columns)
    return replace(Kernel("aten::mm", dtype, moved, 2 * rows * columns, shapes), **fields)


# TFLOPS of vLLM 0.24 on one GPU, alone (ai-dynamo/aiconfigurator 095f58a5, gemm).
@pytest.mark.parametrize(
    ("name", "size", "teraflops"),
    [
        ("A100-SXM-80GB", 2048, 200), ("A100-SXM-80GB", 4096, 250), ("A100-SXM-80GB", 8192, 257),
        ("H100-SXM-80GB", 2048, 656), ("H100-SXM-80GB", 4096, 816), ("H100-SXM-80GB", 8192, 728),
    ],
)  # fmt: skip
def test_a_square_product_takes_as_long_as_it_was_measured_to_take(name: str, size: int, teraflops: float) -> None:
    measured = 2 * size**3 / (teraflops * 1e12)
    within_training = measured / TRAINING_SHARES[gpu(name).record.arch]
    assert gpu(name).seconds(product(size, size, size)) == pytest.approx(within_training, rel=0.2)


@pytest.mark.parametrize("inner", [64, 512, 4096])
def test_no_larger_product_takes_less_time(inner: int) -> None:
    took = [gpu().seconds(product(64 * rows, 1024, inner)) for rows in range(1, 200)]
    assert took == sorted(took)


def test_what_torch_writes_into_out_is_no_factor_of_a_product() -> None:
    plain = product(4096, 1024, 512)
    into_out = replace(plain, shapes=(*plain.shapes, plain.shapes[-1]))
    with_bias = replace(plain, op="aten::addmm", shapes=((1024,), *plain.shapes))
    assert gpu().seconds(plain) == gpu().seconds(into_out) == gpu().seconds(with_bias)


def test_products_of_float32_are_slower_unless_they_may_lose_bits() -> None:
    exact, tensor_cores = (product(8192, 8192, 8192, "float32", scalars=(loses,)) for loses in (0, 1))
    assert gpu().seconds(exact) > 4 * gpu().seconds(tensor_cores) > 4 * gpu().seconds(product(8192, 8192, 8192))


def test_a_kernel_without_shapes_takes_the_time_of_its_bytes() -> None:
    small, large = (Kernel("aten::mul", "bfloat16", size, size) for size in (2**28, 2**29))
    assert gpu().seconds(large) == pytest.approx(2 * gpu().seconds(small), rel=0.02)
    assert gpu().seconds(large) == pytest.approx(2 * 2**29 / (3350e9 * 0.8), rel=0.02)


def test_norms_of_torch_take_longer_than_their_bytes() -> None:
    norm = Kernel("aten::_fused_rms_norm_backward", "bfloat16", 2**28, 2**28)
    assert gpu().seconds(norm) > 4 * gpu().seconds(replace(norm, op="inductor::triton_red_fused_0"))


_SCALARS: dict[str, tuple[int | None, ...]] = {
    "_cudnn_attention_forward": (0, 0, 1, None, 0), "_cudnn_attention_backward": (0, 0, None),
    "_flash_attention_forward": (0, 0, None, 0), "_flash_attention_backward": (0, 0, None),
    "_efficient_attention_forward": (None, 1), "_efficient_attention_backward": (0, 0, None, 0, 0),
}  # fmt: skip
"""Of torch's kernels of attention, as a trace has them; None: whether the mask is causal."""


def attention(op: str, *, causal: bool, length: int = 16384, size: int = 128) -> Kernel:
    of_heads = (1, 16, length, size) if "cudnn" in op else (1, length, 16, size)
    scalars = tuple(int(causal) if each is None else each for each in _SCALARS[op])
    return Kernel(f"aten::{op}", "bfloat16", 0, 0, (of_heads,) * 4, scalars)


@pytest.mark.parametrize("op", _SCALARS)
def test_attention_of_half_of_the_square_takes_half_of_the_time(op: str) -> None:
    whole, half = (attention(op, causal=causal) for causal in (False, True))
    assert operations_of(whole) == 4 * 16 * 16384**2 * 128 * (2.5 if "backward" in op else 1)
    assert operations_of(half) == operations_of(whole) / 2
    assert gpu().seconds(half) == pytest.approx(gpu().seconds(whole) / 2, rel=0.05)


# FlashAttention-3's paper, figures 5 and 6: H100 SXM5, 16k tokens, without a mask, forward of heads of 128.
@pytest.mark.parametrize(("op", "teraflops"), [("_cudnn_attention_forward", 595), ("_flash_attention_forward", 370)])
def test_attention_takes_as_long_as_it_was_measured_to_take(op: str, teraflops: float) -> None:
    measured = 4 * 16 * 16384**2 * 128 / (teraflops * 1e12)
    seconds = gpu().seconds(attention(op, causal=False))
    assert seconds == pytest.approx(measured / TRAINING_SHARES["sm_90"], rel=0.05)


# Microseconds of nccl-tests, NCCL 2.27 on 8 H100 (ai-dynamo/aiconfigurator 095f58a5, comm/nccl).
@pytest.mark.parametrize(
    ("name", "size", "microseconds"),
    [
        ("allreduce", 2**29, 2111),
        ("allreduce", 2**25, 197),
        ("_allgather_base", 2**29, 1400),
        ("_allgather_base", 2**25, 125),
    ],
)
def test_a_collective_in_a_node_takes_as_long_as_it_was_measured_to_take(
    name: str, size: int, microseconds: float
) -> None:
    kernel = Kernel(f"nccl::{name}", "bfloat16", size, 0, (), (8, 1))
    assert 1e6 * seconds_of_collective(kernel, gpu().speed, 8, 50.0) == pytest.approx(microseconds, rel=0.25)


def test_a_group_over_two_nodes_is_slower_than_one_in_a_node() -> None:
    inside, across = (Kernel("nccl::allreduce", "bfloat16", 2**28, 0, (), (8, stride)) for stride in (1, 2))
    assert seconds_of_collective(across, gpu().speed, 8, 50.0) > 1.5 * seconds_of_collective(
        inside, gpu().speed, 8, 50.0
    )


@pytest.mark.parametrize(
    ("kernel", "operations"),
    [
        (product(512, 256, 128), 2 * 512 * 256 * 128),
        (Kernel("aten::convolution", "bfloat16", 0, 0, ((8, 3, 32, 32), (16, 3, 3, 3), (8, 16, 32, 32))),
         2 * 8 * 16 * 32 * 32 * 3 * 3 * 3),
        (Kernel("aten::_flash_attention_forward", "bfloat16", 0, 0, ((2, 128, 4, 64),) * 3, (128, 128, 0, 0)),
         4 * 2 * 4 * 128 * 128 * 64),
        (Kernel("aten::mul", "bfloat16", 2**20, 2**20), 0),
    ],
)  # fmt: skip
def test_operations_are_those_of_the_shapes(kernel: Kernel, operations: int) -> None:
    assert operations_of(kernel) == operations
    assert gpu().least_seconds(kernel) == pytest.approx(operations / (gpu().speed.teraflops * 1e12))
    assert gpu().least_seconds(kernel) < gpu().seconds(kernel)


@pytest.mark.parametrize("streams", [1, 2, 16])
def test_streams_beside_each_other_compute_no_faster_than_the_gpu(streams: int) -> None:
    launches = tuple(Launch(LaunchKind.KERNEL, stream, 0) for stream in range(streams))
    timed = time_step(StepWork((product(8192, 8192, 8192),), launches), "H100-SXM-80GB", 8)

    assert timed is not None
    assert timed.step >= streams * 2 * 8192**3 / (gpu().speed.teraflops * 1e12)
