"""Replays the launches of an iteration: a host that runs ahead, streams that work in order, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from planner.step_work import WHOLE_DEVICE, Kernel, LaunchKind, StepWork

HOST_SECONDS = {"eager": 7e-6, "inductor": 7e-6, "nccl": 2e-5}
"""What the host takes for one launch. Eager: 4 to 8 us (pytorch#82793 and flagos-ai/Torch-FL PR 27 on A100); Inductor's
launcher 6.5 to 9 (meta-pytorch/tritonbench PR 1016)."""


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


def replay_step(work: StepWork, seconds_of: Callable[[Kernel], float]) -> StepSeconds:
    """Seconds of an iteration that follows one like it: the second of two, from end to end."""
    prices = [seconds_of(kernel) for kernel in work.kernels]
    launching = [_host_seconds(kernel) for kernel in work.kernels]
    streams: dict[int, float] = defaultdict(float)
    events: dict[int, float] = {}
    host, ends = 0.0, [0.0]
    busy: dict[bool, float] = defaultdict(float)
    for _ in range(2):
        busy.clear()
        for kind, stream, what in work.launches:
            if kind == LaunchKind.KERNEL:
                host += launching[what]
                streams[stream] = max(streams[stream], host) + prices[what]
                busy[work.kernels[what].op.startswith("nccl::")] += prices[what]
            elif kind == LaunchKind.RECORD:
                events[what] = streams[stream]
            elif kind == LaunchKind.WAIT:
                streams[stream] = max(streams[stream], events.get(what, 0.0))
            elif kind == LaunchKind.WAIT_ALL:
                streams[stream] = max(streams.values(), default=0.0)
            else:
                host = max(host, max(streams.values(), default=0.0) if stream == WHOLE_DEVICE else streams[stream])
        ends.append(max(host, *streams.values()) if streams else host)
    launched = sum(launching[what] for kind, _, what in work.launches if kind == LaunchKind.KERNEL)
    return StepSeconds((ends[2] - ends[1]) * (1 + _idle_share(work)), busy[False], busy[True], launched)


def _idle_share(work: StepWork) -> float:
    """How long a stage of a pipeline waits, beside what it computes: (stages - 1) / micro-batches. It receives one
    message for each micro-batch from each of its neighbours."""
    kernels = (work.kernels[what] for kind, _, what in work.launches if kind == LaunchKind.KERNEL)
    received = [kernel.scalars for kernel in kernels if kernel.op == "nccl::recv"]
    if not received:
        return 0.0
    stages, neighbours = received[0][0], len({scalars[2:] for scalars in received})
    return (stages - 1) * neighbours / len(received)


def _host_seconds(kernel: Kernel) -> float:
    return HOST_SECONDS.get(kernel.op.partition("::")[0], HOST_SECONDS["eager"])
