"""A thousand hostile bodies (300 in CI): each is answered by a problem of a few KiB, soon, and none by our fault."""

from __future__ import annotations

import ctypes
import gc
import time
from pathlib import Path

import httpx
import pytest
from hostile_bodies import COUNT, HostileRequest, found_before, hostile_requests
from machine_speed import takes_too_long
from soak import share
from starlette.testclient import TestClient

from planner.service.http.problems import MEDIA_TYPE, MOST_BYTES
from planner.units import MIB

ASKED = share(COUNT, in_ci=300)
MOST_SECONDS = 2.0
MOST_GROWTH = 200 * MIB


def test_the_bodies_are_a_thousand_and_no_two_are_the_same() -> None:
    bodies = [(each.path, each.body) for each in hostile_requests()]

    assert len(set(bodies)) == len(bodies) == COUNT
    assert bodies == [(each.path, each.body) for each in hostile_requests()]


def test_every_hostile_body_is_answered_soon_and_by_no_fault_of_planner(client: TestClient) -> None:
    faults: list[str] = []
    answered = 0
    for request in hostile_requests(100, seed=1):  # what is loaded with a first request is not a growth
        ask(client, request)
    before = resident_bytes()
    for request in hostile_requests(ASKED):
        answer, seconds = ask(client, request)
        if seconds > MOST_SECONDS:  # the machine may have been busy
            answer, seconds = ask(client, request)
        answered += 1
        faults += [f"{request.name} ({request.path}): {fault}" for fault in faults_of(answer, seconds)]
    growth = resident_bytes() - before

    assert faults == []
    assert answered == ASKED
    assert growth < MOST_GROWTH


@pytest.mark.parametrize("request_", list(found_before()), ids=lambda each: f"{each.name} {each.path}")
def test_what_did_harm_once_is_refused(client: TestClient, request_: HostileRequest) -> None:
    answer, _ = ask(client, request_)

    assert (answer.status_code, answer.headers["Content-Type"]) in (
        (400, MEDIA_TYPE),
        (422, MEDIA_TYPE),
        (409, MEDIA_TYPE),
    )


def ask(client: TestClient, request: HostileRequest) -> tuple[httpx.Response, float]:
    """The answer, and the processor time that it took, of all threads of this process."""
    began = time.process_time()
    answer = client.request(request.method, request.path, content=request.body, headers=request.headers)
    return answer, time.process_time() - began


def faults_of(answer: httpx.Response, seconds: float) -> list[str]:
    """What is wrong with an answer."""
    refused = answer.status_code >= 400
    checks = {
        f"status {answer.status_code}: {answer.text[:300]}": answer.status_code < 500,
        f"{seconds:.2f} s": not takes_too_long(seconds, MOST_SECONDS),
        f"{len(answer.content)} bytes": len(answer.content) <= MOST_BYTES or not refused,
        f"Content-Type {answer.headers['Content-Type']}": not refused or answer.headers["Content-Type"] == MEDIA_TYPE,
    }
    return [fault for fault, right in checks.items() if not right]


def resident_bytes() -> int:
    """Of this process, after what can be given back was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
