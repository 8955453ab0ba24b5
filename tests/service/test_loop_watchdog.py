"""A process whose event loop stands still ends, and says where it stood; Serve starts another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from planner.service.app import LoopWatchdog

PROGRAM = """
import asyncio, re, sys, time

from planner.service.app import LoopWatchdog


async def application(scope, receive, send):
    await receive()
    await send({{"type": "lifespan.startup.complete"}})
    await receive()


async def serve(seconds):
    ending = asyncio.Event()
    asked = iter(["lifespan.startup"])

    async def receive():
        for kind in asked:
            return {{"type": kind}}
        await ending.wait()
        return {{"type": "lifespan.shutdown"}}

    async def send(message):
        print(message["type"], flush=True)

    living = asyncio.create_task(LoopWatchdog(application, seconds)({{"type": "lifespan"}}, receive, send))
    await asyncio.sleep(seconds or 0.1)
    {work}
    ending.set()
    await living
    {afterwards}
    print("ended", flush=True)


asyncio.run(serve({seconds}))
"""


def run(work: str, seconds: float = 0.5, afterwards: str = "pass") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(work=work, seconds=seconds, afterwards=afterwards)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)


def test_a_process_whose_loop_stands_still_ends_and_says_where_it_stood() -> None:
    ended = run("re.match('(a+)+$', 'a' * 64 + 'b')")  # it never lets go of Python's lock

    assert (ended.returncode, ended.stdout) == (1, "lifespan.startup.complete\n")
    assert "Timeout (0:00:00.5" in ended.stderr
    assert "in serve" in ended.stderr


@pytest.mark.parametrize(
    ("work", "seconds", "afterwards"),
    [("await asyncio.sleep(1.5 * seconds)", 4.0, "time.sleep(1.5 * seconds)"), ("time.sleep(1)", 0.0, "pass")],
    ids=["its loop goes, and then it is over", "nobody watches"],
)
def test_a_process_goes_on_when(work: str, seconds: float, afterwards: str) -> None:
    ended = run(work, seconds, afterwards)

    assert (ended.returncode, ended.stdout) == (0, "lifespan.startup.complete\nended\n"), ended.stderr


async def block(_: Request) -> PlainTextResponse:
    time.sleep(600)
    return PlainTextResponse("it was not ended")


async def process(_: Request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


def test_serve_starts_another_replica_in_the_place_of_one_that_stands_still(
    service: Any, eventually: Callable[..., Any]
) -> None:
    from ray import serve

    @serve.deployment(name="Stuck", ray_actor_options={"num_cpus": 0.1}, health_check_period_s=1)
    @serve.ingress()
    class Stuck:
        def __serve_build_asgi_app__(self) -> Any:
            return LoopWatchdog(Starlette(routes=[Route("/block", block), Route("/process", process)]), seconds=10.0)

    def asked() -> str:
        answer = httpx.get(f"{service.base_url}/stuck/process", timeout=300)
        return answer.text if answer.status_code == 200 else ""

    serve.run(Stuck.bind(), name="stuck", route_prefix="/stuck")
    try:
        first = eventually(asked, "no replica")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{service.base_url}/stuck/block", timeout=1)
        assert eventually(lambda: (now := asked()) != first and now, "the replica still stands still")
    finally:
        serve.delete("stuck")
