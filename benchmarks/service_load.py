"""How many store hits a second the service answers over HTTP, with 32 connections, and how long each takes inside it.

`measure()` starts a service of its own; `python benchmarks/service_load.py URL` asks one that runs.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from planner.service.http.openapi import EXAMPLE_JOB
from planner.service.local_ray import free_ports

CONNECTIONS = 32
REQUESTS = 3000
WANTED_PER_SECOND, WANTED_MEDIAN_MS = 300.0, 5.0
ROUTE = "/v1/plans"


@dataclass(frozen=True)
class Load:
    """What was seen: inside, by the service's own log, of one request at a time; the rest from outside, under load."""

    per_second: float
    median_ms: float
    worst_ms: float
    inside_median_ms: float
    answer_bytes: int


def measure() -> Load:
    """Of a service that is started for it, with a store in a file, on this machine's cores."""
    with _service() as (url, log):
        found = asyncio.run(_load(url))
        inside = _one_by_one(url, log)
    return Load(**found, inside_median_ms=inside)


def _one_by_one(url: str, log: str, count: int = 300) -> float:
    """The median inside the service: from its own log, of requests that come one after the other."""
    with open(log, encoding="utf-8") as lines:
        lines.seek(0, 2)
        for _ in range(count):
            _post(url)
        time.sleep(1.5)  # lines come through Ray
        said = [json.loads(line) for line in lines if line.startswith("{")]
    seconds = [each["seconds"] for each in said if each.get("route") == ROUTE and each.get("status") == 200]
    return statistics.median(seconds) * 1000


@contextmanager
def _service() -> Iterator[tuple[str, str]]:
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        log, database = f"{folder}/log", f"sqlite:///{folder}/planner.sqlite"
        with open(log, "w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "planner", "serve", "--port", str(port), "--database", database],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError("the service did not start")
        try:
            yield f"http://127.0.0.1:{port}", log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _post(url: str) -> bytes:
    body = json.dumps(EXAMPLE_JOB).encode()
    request = urllib.request.Request(url + ROUTE, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
    return found


async def _load(url: str) -> dict[str, float | int]:
    answer = await asyncio.to_thread(_post, url)  # from now on it is in the store
    left = iter(range(REQUESTS))
    seconds: list[float] = []
    began = time.perf_counter()
    await asyncio.gather(*(_ask(url, left, seconds) for _ in range(CONNECTIONS)))
    taken = time.perf_counter() - began
    return {
        "per_second": len(seconds) / taken,
        "median_ms": statistics.median(seconds) * 1000,
        "worst_ms": max(seconds) * 1000,
        "answer_bytes": len(answer),
    }


async def _ask(url: str, left: Iterator[int], seconds: list[float]) -> None:
    """One connection that stays open; as little of a client as there can be, since it shares the cores."""
    where = urlsplit(url)
    body = json.dumps(EXAMPLE_JOB).encode()
    head = f"POST {ROUTE} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    for _ in left:
        began = time.perf_counter()
        writer.write(request)
        said = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not said.startswith(b"http/1.1 200"):
            raise RuntimeError(said.decode())
        length = int(said.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        seconds.append(time.perf_counter() - began)
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(asyncio.run(_load(sys.argv[1])))
    else:
        print(measure())
