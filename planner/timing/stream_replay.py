"""Replays the launches of an iteration: a host that runs ahead, streams that work in order, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.step_work import StepWork
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
