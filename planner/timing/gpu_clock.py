"""The time of the host and of each stream of a GPU, in nanoseconds, as launches move them."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from planner.step_work import WHOLE_DEVICE, Kernel, Launch, LaunchKind

HOST_NS = {"eager": 7_000, "inductor": 7_000, "nccl": 20_000}
"""What the host takes for one launch. Eager: 4 to 8 us (pytorch#82793 and flagos-ai/Torch-FL PR 27 on A100); Inductor's
launcher 6.5 to 9 (meta-pytorch/tritonbench PR 1016)."""
MOST_AHEAD = 1024
"""Launches, records of events and waits that a stream takes before the host has to wait. CUDA does not document it:
some 1,000 by measurements in NVIDIA's forum (topics 68937, and 220629 for events)."""
_KERNEL, _RECORD, _WAIT = int(LaunchKind.KERNEL), int(LaunchKind.RECORD), int(LaunchKind.WAIT)
"""As plain numbers, which compare faster: of a long trace every launch is asked for."""
COMPILE_NS = 1_000_000_000
"""What compilation takes at least, in which the GPU ends whatever it was given."""


@dataclass(frozen=True, slots=True)
class Prices:
    """By the number of a kernel: what the GPU takes for it, and what the host takes to launch it; nanoseconds."""

    gpu: list[int]
    host: list[int]

    def extend(self, more: Prices) -> None:
        """Those of kernels that have the next numbers."""
        self.gpu.extend(more.gpu)
        self.host.extend(more.host)

    def with_host(self, factor: float) -> Prices:
        """A host that takes so much longer."""
        return Prices(self.gpu, [round(factor * price) for price in self.host])


def host_ns(kernel: Kernel) -> int:
    """What the host takes to launch a kernel."""
    return HOST_NS.get(kernel.op.partition("::")[0], HOST_NS["eager"])


class GpuClock:
    """A host that runs ahead, streams that work in order, and who waits for whom."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self.host = 0
        self.streams: defaultdict[int, int] = defaultdict(int)
        """By stream: when all that was launched on it has ended."""
        self.events: dict[int, int] = {}
        """By event: when it has passed."""
        self._queues: defaultdict[int, deque[int]] = defaultdict(deque)
        """By stream: the ends of its latest launches."""

    def take(self, launch: Launch) -> None:
        """The host does this next."""
        kind, stream, what = launch
        if kind == _KERNEL:
            self.host += self._prices.host[what]
            self._enqueue(stream, self._prices.gpu[what])
        elif kind == _RECORD:
            self.events[what] = self._enqueue(stream)
        elif kind == _WAIT:
            self.streams[stream] = max(self.streams[stream], self.events.get(what, 0))
            self._enqueue(stream)
        elif kind == LaunchKind.WAIT_ALL:
            self.streams[stream] = self.end()
        elif kind == LaunchKind.HOST_WAIT:
            self.wait_until(self.end() if stream == WHOLE_DEVICE else self.streams[stream])
        elif kind == LaunchKind.HOST_WAIT_EVENT:
            self.wait_until(self.events.get(what, 0))
        elif kind == LaunchKind.COMPILE:
            self.host += COMPILE_NS

    def wait_until(self, moment: int) -> None:
        """The host does nothing before then."""
        self.host = max(self.host, moment)

    def end(self) -> int:
        """When every stream has ended what it was given."""
        return max(self.streams.values(), default=0)

    def lead(self) -> tuple[object, ...]:
        """How far the host is ahead of each stream, of the launches in its queue and of events: the same at two moments
        from which on the same launches take the same time."""
        now = self.host
        return (
            tuple(sorted((stream, end - now) for stream, end in self.streams.items() if end > now)),
            tuple(sorted((event, at - now) for event, at in self.events.items() if at > now)),
            tuple(
                (stream, tuple(end - now for end in queue if end > now))
                for stream, queue in sorted(self._queues.items())
                if queue and queue[-1] > now
            ),
        )

    def skip(self, nanoseconds: int) -> None:
        """Everything that has happened and is to happen is so much later."""
        self.host += nanoseconds
        for times in (self.streams, self.events):
            for key in times:
                times[key] += nanoseconds
        for stream, queue in self._queues.items():
            self._queues[stream] = deque(end + nanoseconds for end in queue)

    def _enqueue(self, stream: int, takes: int = 0) -> int:
        """The stream gets something to do that takes so long; when it ends."""
        queue = self._queues[stream]
        if len(queue) == MOST_AHEAD:
            self.wait_until(queue.popleft())
        end = max(self.streams[stream], self.host) + takes if takes else self.streams[stream]
        self.streams[stream] = end
        queue.append(end)
        return end
