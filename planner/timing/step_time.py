"""How long a step of a traced rank takes on a GPU of the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.hardware import catalog
from planner.hardware.kernel_speeds import product_speed
from planner.step_work import Kernel, StepWork
from planner.timing.collective_seconds import seconds_of_collective
from planner.timing.gpu_clock import Prices, host_ns
from planner.timing.kernel_seconds import PricedGpu
from planner.timing.stream_replay import StepSeconds, replay_step

INTERVAL = (0.8, 1.35)
"""Of the predicted time: between these lie 95 % of published steps (docs/results/step-times.md)."""


_NEVER = 1 << 50
"""Nanoseconds of a kernel of which nothing is known: what waits for it waits until the host does."""


def price_for_clock(kernels: Sequence[Kernel], gpu: str, arch: str, gpus_per_node: int) -> Prices:
    """As `price_kernels`. For a GPU that the catalog lacks they are those of one of its architecture; if there is none
    either, kernels end only where the host waits for them."""
    alike = (name for name, record in catalog.gpus().items() if record.arch == arch)
    for name in (gpu, *alike):
        if (prices := price_kernels(kernels, name, gpus_per_node)) is not None:
            return prices
    return Prices([_NEVER] * len(kernels), [host_ns(kernel) for kernel in kernels])


def price_kernels(kernels: Sequence[Kernel], gpu: str, gpus_per_node: int) -> Prices | None:
    """What each kernel takes on a GPU of the catalog; None where nothing is known of the GPU's speed."""
    if (priced := _priced(gpu)) is None:
        return None
    network = catalog.network_gb_s(gpu)

    def seconds_of(kernel: Kernel) -> float:
        if kernel.op.startswith("nccl::"):
            return seconds_of_collective(kernel, priced.speed, gpus_per_node, network)
        return priced.seconds(kernel)

    return Prices([round(1e9 * seconds_of(kernel)) for kernel in kernels], [host_ns(kernel) for kernel in kernels])


def time_step(work: StepWork, gpu: str, gpus_per_node: int) -> StepSeconds | None:
    """None where nothing was computed, or nothing is known of the GPU's speed."""
    prices, priced = price_kernels(work.kernels, gpu, gpus_per_node), _priced(gpu)
    if prices is None or priced is None or not work.launches:
        return None
    timed = replay_step(work, prices)
    # Streams beside each other share the multiprocessors: together they compute no faster than the GPU.
    least = sum(count * priced.least_seconds(work.kernels[what]) for what, count in work.count_kernels().items())
    return replace(timed, step=max(timed.step, least))


def _priced(gpu: str) -> PricedGpu | None:
    record, speed = catalog.by_name(gpu), catalog.speed_of(gpu)
    products = None if record is None else product_speed(record)
    if record is None or speed is None or products is None:
        return None
    return PricedGpu(record, speed, products)
