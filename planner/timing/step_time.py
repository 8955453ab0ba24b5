"""How long a step of a traced rank takes on a GPU of the catalog: its launches are priced and replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.hardware import catalog
from planner.hardware.kernel_speeds import product_speed
from planner.step_work import Kernel, StepWork
from planner.timing.gpu_clock import GpuClock, Prices, host_ns
from planner.timing.kernel_seconds import PricedGpu, seconds_of_collective

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
    if (priced := priced_gpu(gpu)) is None:
        return None
    network = catalog.network_gb_s(gpu)

    def seconds_of(kernel: Kernel) -> float:
        if kernel.op.startswith("nccl::"):
            return seconds_of_collective(kernel, priced.speed, gpus_per_node, network)
        return priced.seconds(kernel)

    return Prices([round(1e9 * seconds_of(kernel)) for kernel in kernels], [host_ns(kernel) for kernel in kernels])


def time_step(work: StepWork, gpu: str, gpus_per_node: int) -> StepSeconds | None:
    """None where nothing was computed, or nothing is known of the GPU's speed."""
    prices, priced = price_kernels(work.kernels, gpu, gpus_per_node), priced_gpu(gpu)
    if prices is None or priced is None or not work.launches:
        return None
    timed = replay_step(work, prices)
    # Streams beside each other share the multiprocessors: together they compute no faster than the GPU.
    least = sum(count * priced.least_seconds(work.kernels[what]) for what, count in work.count_kernels().items())
    return replace(timed, step=max(timed.step, least))


def priced_gpu(gpu: str) -> PricedGpu | None:
    """None where nothing is known of the GPU's speed."""
    record, speed = catalog.by_name(gpu), catalog.speed_of(gpu)
    products = None if record is None else product_speed(record)
    if record is None or speed is None or products is None:
        return None
    return PricedGpu(record, speed, products)


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """How long one iteration takes, and what of it is whose."""

    step: float
    computing: float
    """The stream of the model is at work."""
    communicating: float
    """The streams of communicators are at work, beside the model or not."""
    launching: float
    """The host is at work."""


def replay_step(work: StepWork, prices: Prices) -> StepSeconds:
    """Seconds of an iteration that follows one like it: the second of two, from end to end."""
    clock, ends = GpuClock(prices), [0]
    for _ in range(2):
        _take_all(clock, work)
        ends.append(max(clock.host, clock.end()))
    launched = work.count_kernels()
    of_gpu = {what: count * prices.gpu[what] for what, count in launched.items()}
    communicating = sum(took for what, took in of_gpu.items() if work.kernels[what].op.startswith("nccl::"))
    return StepSeconds(
        step=(ends[2] - ends[1]) * (1 + _idle_share(work, launched)) / 1e9,
        computing=(sum(of_gpu.values()) - communicating) / 1e9,
        communicating=communicating / 1e9,
        launching=sum(count * prices.host[what] for what, count in launched.items()) / 1e9,
    )


def _take_all(clock: GpuClock, work: StepWork) -> None:
    """What repeats is taken until the host is as far ahead as before a repetition: from then on all take as long."""
    written = 0
    for first, after, times in work.repeats:
        for launch in work.launches[written:after]:
            clock.take(launch)
        stretch, lead = work.launches[first:after], clock.lead()
        for left in range(times, 0, -1):
            began, before = clock.host, lead
            for launch in stretch:
                clock.take(launch)
            lead = clock.lead()
            if lead == before:
                clock.skip((left - 1) * (clock.host - began))
                break
        written = after
    for launch in work.launches[written:]:
        clock.take(launch)


def _idle_share(work: StepWork, launched: Mapping[int, int]) -> float:
    """How long a stage of a pipeline waits, beside what it computes: (stages - 1) / micro-batches. It receives one
    message for each micro-batch from each of its neighbours."""
    received = {what: count for what, count in launched.items() if work.kernels[what].op == "nccl::recv"}
    if not received:
        return 0.0
    scalars = [work.kernels[what].scalars for what in received]
    stages, neighbours = scalars[0][0], len({of_one[2:] for of_one in scalars})
    return (stages - 1) * neighbours / sum(received.values())
