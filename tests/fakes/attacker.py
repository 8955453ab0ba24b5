"""Attacks a service on this machine for some seconds: `attacker.py HOST:PORT TOKEN PLAN_ID SECONDS [KIND ...]`.

Prints, as JSON, how often each kind was answered with which status; `left` is a caller that did not wait for one.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from planner.service.http.openapi import EXAMPLE_JOB

SMALL_PAUSE = 0.2


class Attack:
    """Connections of one attacker, and the answers that it got."""

    def __init__(self, address: str, token: str, plan_id: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port, self._token, self._plan_id = int(port), token, plan_id
        self._batches = itertools.count(random.randrange(1000, 10**6))
        self.answers: dict[str, Counter[str]] = {}

    async def leaving(self) -> None:
        """Callers that ask for new plans and leave: at once, while they wait, in the middle of the work."""
        await asyncio.gather(*(self._send("leaving", self._new_job(), random.uniform(0.1, 5)) for _ in range(10)))

    async def messages(self) -> None:
        """Reports of jobs with a message of 7.5 MB."""
        report = {"rank": 0, "out_of_memory": "CUDA out of memory. Tried to allocate " * 200_000}
        request = self._request("PUT", "/v1/jobs/slurm/x", json.dumps({"ranks": [report]}).encode())
        await asyncio.gather(*(self._send("messages", request, 60) for _ in range(2)))

    async def reports(self) -> None:
        """Reports with as many messages as are read, each as long as may be."""
        ranks = [{"rank": rank, "out_of_memory": "Tried to allocate " * 14_000} for rank in range(25)]
        request = self._request("PUT", "/v1/jobs/slurm/y", json.dumps({"ranks": ranks}).encode())
        await asyncio.gather(*(self._send("reports", request, 60) for _ in range(2)))

    async def timelines(self) -> None:
        """Without a token, 20 at once and then 300."""
        request = self._request("GET", f"/v1/plans/{self._plan_id}/timeline", token="")
        for many in (20, 300):
            await asyncio.gather(*(self._send("timelines", request, 60) for _ in range(many)))

    async def writers(self) -> None:
        """500 at once tell of jobs."""
        body = json.dumps({"plan_id": self._plan_id, "team": "nlp"}).encode()
        requests = [self._request("PUT", f"/v1/jobs/slurm/{number}", body) for number in range(500)]
        await asyncio.gather(*(self._send("writers", request, 60) for request in requests))

    async def half_bodies(self) -> None:
        """300 requests whose body stops after 80 kB."""
        head = self._request("POST", "/v1/plans", b"", length=200_000)
        await asyncio.gather(*(self._send("half bodies", head + b"{" * 80_000, 70) for _ in range(300)))

    async def half_lines(self) -> None:
        """4,200 connections with half a request line."""
        await asyncio.gather(*(self._send("half lines", b"GET /v1/pl", 70) for _ in range(4200)))

    def _new_job(self) -> bytes:
        job = copy.deepcopy(EXAMPLE_JOB)
        job["train"].update(micro_batch_size=next(self._batches), iterations=30, optimizer={"name": "RAdam"})
        job["model"]["decoder"]["layers"] = 24
        return self._request("POST", "/v1/plans", json.dumps(job).encode())

    def _request(
        self, method: str, path: str, body: bytes = b"", *, token: str | None = None, length: int = 0
    ) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}:{self._port}", "Connection: close"]
        if body or length:
            lines += ["Content-Type: application/json", f"Content-Length: {length or len(body)}"]
        if used := self._token if token is None else token:
            lines.append(f"Authorization: Bearer {used}")
        return "\r\n".join((*lines, "", "")).encode() + body

    async def _send(self, kind: str, request: bytes, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._answer(request)
        except TimeoutError:
            answer = "left"
        except OSError:
            answer = "reset"
        self.answers.setdefault(kind, Counter())[answer] += 1

    async def _answer(self, request: bytes) -> str:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            with suppress(ConnectionError):  # it may be refused before all of it is sent
                writer.write(request)
                await writer.drain()
            status = (await reader.readline()).decode().split(" ")[1:2]
            while await reader.read(2**16):
                pass
            return status[0] if status else "closed"
        finally:
            writer.close()


async def main(address: str, token: str, plan_id: str, seconds: float, kinds: list[str]) -> None:
    attack = Attack(address, token, plan_id)
    every: list[Callable[[], Awaitable[None]]] = [
        attack.leaving, attack.messages, attack.reports, attack.timelines, attack.writers, attack.half_bodies,
        attack.half_lines,
    ]  # fmt: skip

    async def repeat(one: Callable[[], Awaitable[None]]) -> None:
        while True:
            await one()
            await asyncio.sleep(SMALL_PAUSE)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(repeat(one) for one in every if not kinds or one.__name__ in kinds))
    print(json.dumps(attack.answers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], float(sys.argv[4]), sys.argv[5:]))
