"""Keeps requests from holding up others: places for reads and writes, turns for long answers, threads for probes,
jobs that were read before."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from planner.job.schema import Job
from planner.service.errors import BusyError

PROBES = ("/livez", "/readyz", "/metrics")
"""Asked every few seconds by machines. They never wait for a place, nor share a thread with other requests."""
READS = ("GET", "HEAD", "OPTIONS")
DRAWN = "/timeline"
_Result = TypeVar("_Result")


class Places:
    """How many requests of a kind may be under way in one replica: quick reads are not refused because writes or
    drawings take long, and writes of others not because one token has all places for them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[tuple[str, str]] = Counter()

    def take(self, method: str, path: str, token: str = "") -> Callable[[], None] | None:
        """What gives the place back; None where there is none. `token` is what the caller shows, if anything."""
        if path in PROBES:
            return lambda: None
        kind = "writes" if method not in READS else "drawings" if path.endswith(DRAWN) else "reads"
        bounds = {(kind, ""): self._most}
        if kind == "writes" and token:
            bounds[kind, token] = max(self._most // 2, 1)
        if any(self._taken[place] >= most for place, most in bounds.items()):
            return None
        self._taken.update(bounds.keys())

        def give_back() -> None:
            self._taken.subtract(bounds.keys())
            for place in [place for place in bounds if not self._taken[place]]:
                del self._taken[place]

        return give_back


class Turns:
    """A few long answers at a time, and a few that wait for their turn. For one event loop."""

    def __init__(self, what: str, at_once: int, waiting: int) -> None:
        """`what` says in a refusal what there is too much of, such as `timelines`."""
        self._what, self._most = what, at_once + waiting
        self._at_once = at_once
        self._turns = asyncio.Semaphore(at_once)
        self._count = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._count >= self._most:
            raise BusyError(
                f"{self._count} {self._what} are being made or wait for it",
                allowed=f"{self._at_once} at once and {self._most - self._at_once} that wait, in each replica",
                remedy="try again later",
                retry_after_seconds=2,
            )
        self._count += 1
        try:
            async with self._turns:
                yield
        finally:
            self._count -= 1


SOON_SECONDS = 0.5
"""Of the second within which a prober is to be answered."""
STALE_SECONDS = 15.0
"""Probers ask every 5 to 10 s."""


class LatestFinding:
    """What is found by looking, one look at a time: on a busy machine, asking the database and other processes takes
    seconds. For one event loop."""

    def __init__(self) -> None:
        self._look: asyncio.Task[None] | None = None
        self._found: Any = None
        self._found_at = -math.inf

    async def find(self, look: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """What this look, or the one under way, finds; what the last one found if that takes long."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._note(look))
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait({self._look}, timeout=SOON_SECONDS)
        if done or loop.time() - self._found_at > STALE_SECONDS:
            await asyncio.shield(self._look)
        found: _Result = self._found
        return found

    async def _note(self, look: Callable[[], Coroutine[Any, Any, _Result]]) -> None:
        self._found = await look()
        self._found_at = asyncio.get_running_loop().time()


_WRITERS = ThreadPoolExecutor(2, "write")


async def write_in_turn(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """What a function returns or raises that writes to the history. A database takes few writes at once: hundreds that
    wait for it leave the threads to those who read."""
    return await asyncio.get_running_loop().run_in_executor(_WRITERS, function, *arguments)


class SharedCalls:
    """Calls in a thread of their own, whose result all share who ask for the same while it runs."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._running: dict[Hashable, asyncio.Future[Any]] = {}

    async def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """What the function returns or raises; for one event loop at a time."""
        key = (function, arguments)
        running = self._running.get(key)
        if running is None:
            running = asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        # Whoever leaves leaves it to the others.
        result: _Result = await asyncio.shield(running)
        return result


_MOST_JOBS = 256
"""A job takes some ten times the bytes of its body."""


class JobsRead:
    """The jobs of small JSON bodies, by their bytes: hooks send one spec again and again, and a process that reads
    it takes 25 ms."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[bytes, Job] = OrderedDict()

    def get(self, body: bytes) -> Job | None:
        if body in self._jobs:
            self._jobs.move_to_end(body)
        return self._jobs.get(body)

    def keep(self, body: bytes, job: Job) -> None:
        self._jobs[body] = job
        if len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)
