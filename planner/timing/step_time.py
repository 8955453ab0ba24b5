"""How long a step of a traced rank takes on a GPU of the catalog."""

from __future__ import annotations

from dataclasses import replace

from planner.hardware import catalog
from planner.hardware.kernel_speeds import product_speed
from planner.step_work import Kernel, LaunchKind, StepWork
from planner.timing.collective_seconds import seconds_of_collective
from planner.timing.kernel_seconds import PricedGpu
from planner.timing.stream_replay import StepSeconds, replay_step

INTERVAL = (0.8, 1.35)
"""Of the predicted time: between these lie 95 % of published steps (docs/results/step-times.md)."""


def time_step(work: StepWork, gpu: str, gpus_per_node: int) -> StepSeconds | None:
    """None where nothing was computed, or nothing is known of the GPU's speed."""
    record, speed = catalog.by_name(gpu), catalog.speed_of(gpu)
    products = None if record is None else product_speed(record)
    if record is None or speed is None or products is None or not work.launches:
        return None
    priced, network = PricedGpu(record, speed, products), catalog.network_gb_s(gpu)

    def seconds_of(kernel: Kernel) -> float:
        if kernel.op.startswith("nccl::"):
            return seconds_of_collective(kernel, speed, gpus_per_node, network)
        return priced.seconds(kernel)

    timed = replay_step(work, seconds_of)
    # Streams beside each other share the multiprocessors: together they compute no faster than the GPU.
    least = sum(
        priced.least_seconds(work.kernels[what]) for kind, _, what in work.launches if kind == LaunchKind.KERNEL
    )
    return replace(timed, step=max(timed.step, least))
