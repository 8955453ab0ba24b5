"""Replays the launches of an iteration: a host that runs ahead, streams that work in order, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

from planner.step_work import LaunchKind, StepWork
from planner.timing.gpu_clock import GpuClock, Prices


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
        for launch in work.launches:
            clock.take(launch)
        ends.append(max(clock.host, clock.end()))
    launched = [what for kind, _, what in work.launches if kind == LaunchKind.KERNEL]
    communicating = sum(prices.gpu[what] for what in launched if work.kernels[what].op.startswith("nccl::"))
    return StepSeconds(
        step=(ends[2] - ends[1]) * (1 + _idle_share(work)) / 1e9,
        computing=(sum(prices.gpu[what] for what in launched) - communicating) / 1e9,
        communicating=communicating / 1e9,
        launching=sum(prices.host[what] for what in launched) / 1e9,
    )


def _idle_share(work: StepWork) -> float:
    """How long a stage of a pipeline waits, beside what it computes: (stages - 1) / micro-batches. It receives one
    message for each micro-batch from each of its neighbours."""
    kernels = (work.kernels[what] for kind, _, what in work.launches if kind == LaunchKind.KERNEL)
    received = [kernel.scalars for kernel in kernels if kernel.op == "nccl::recv"]
    if not received:
        return 0.0
    stages, neighbours = received[0][0], len({scalars[2:] for scalars in received})
    return (stages - 1) * neighbours / len(received)
