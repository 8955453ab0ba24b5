"""Bodies that are malformed, hostile or just large: always an answer that says why, never a fault of ours."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from soak import share
from starlette.testclient import TestClient

from planner.service.http import bodies
from planner.service.http.bodies import LimitedBodies
from planner.service.http.openapi import EXAMPLE_JOB
from planner.units import MIB

Asgi = Callable[..., TestClient]
JSON = {"content-type": "application/json"}
EXAMPLES_IN_ALL = share(1000, in_ci=150)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"  \n", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'"text"', 400),
        (b"\xff\xfe{}", 400),
        (b'{"model": "\xc3\x28"}', 400),
        (b"[" * 200_000, 400),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, 400),
        (b'{"model": NaN}', 400),
        (b'{"model": -Infinity}', 400),
        (b'{"model": {}, "model": {}}', 400),
        (b"9" * 10_000, 400),
        (b'{"model": ' + b"9" * 10_000 + b"}", 400),
        (b"{}", 422),
        (b'{"schema": "planner.bundle/9"}', 422),
        (b'{"schema": null}', 422),
        (b'{"model": "\\ud800", "cluster": {}}', 422),
        (b'{"\\u0000": 1}', 422),
        (json.dumps({**EXAMPLE_JOB, "train": {"gradient_clipping": 1e400}}).encode(), 400),
        (json.dumps({**EXAMPLE_JOB, "model": {"hf_config": "/etc/passwd"}}).encode(), 422),
        (json.dumps({**EXAMPLE_JOB, "model": {"hf_config": "../secret.json"}}).encode(), 422),
    ],
)
def test_a_body_that_is_no_job_is_refused_with_a_reason(asgi: Asgi, body: bytes, status: int) -> None:
    answer = asgi().post("/v1/plans", content=body, headers=JSON)

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["problem"]


@pytest.mark.parametrize(
    "body",
    [
        b"a: &a [*a]",
        b"a: &a {b: 1}\n" + b"\n".join(b"x%d: [%s]" % (n, b",".join([b"*a"] * 10)) for n in range(30)),
        b"x0: &x0 [1,1,1,1,1,1,1,1,1]\n"
        + b"\n".join(b"x%d: &x%d [%s]" % (n, n, b",".join([b"*x%d" % (n - 1)] * 9)) for n in range(1, 12)),
        b"!!python/object/apply:os.system [id]",
        b"a: b\n---\nc: d",
        b"{" * 2_000,
        b"\x00",
        b"model: {hf_config: /etc/passwd}\ncluster: {gpu: H100-SXM-80GB}\ntrain: {sequence_length: 8}",
    ],
)
def test_yaml_that_is_no_job_is_refused_soon(asgi: Asgi, body: bytes) -> None:
    answer = asgi().post("/v1/plans", content=body, headers={"content-type": "application/yaml"})

    assert answer.status_code in (400, 422)
    assert "root:" not in answer.text


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "\xff"])
def test_another_content_type_is_refused(asgi: Asgi, kind: str) -> None:
    headers = {"content-type": kind.encode("latin-1")} if kind else {}
    answer = asgi().post("/v1/plans", content=json.dumps(EXAMPLE_JOB).encode(), headers=headers)

    assert (answer.status_code, answer.json()["place"]) == (415, "Content-Type")


def test_a_compressed_body_is_refused_so_that_none_unfolds(asgi: Asgi) -> None:
    answer = asgi().post("/v1/plans", content=b"\x1f\x8b", headers={**JSON, "content-encoding": "gzip"})

    assert answer.status_code == 415


def test_yaml_as_large_as_nobody_writes_it_is_refused(asgi: Asgi) -> None:
    answer = asgi().post("/v1/plans", content=b"# x\n" * 100_000, headers={"content-type": "application/yaml"})

    assert (answer.status_code, answer.json()["remedy"][:13]) == (413, "send a bundle")


@pytest.mark.parametrize("said", [None, b"7", b"99999999999999999999999", b"-1", b"many"])
def test_a_large_body_is_refused_before_it_has_arrived_whatever_it_says_of_its_length(said: bytes | None) -> None:
    taken, sent = 0, []

    async def reads_all(_: Any, receive: Any, __: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        raise AssertionError("the whole body was read")

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 64 * 1024
        return {"type": "http.request", "body": bytes(64 * 1024), "more_body": taken < 100 * MIB}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"content-length", said)] if said is not None else []}
    asyncio.run(LimitedBodies(reads_all, MIB)(scope, receive, send))

    assert sent[0]["status"] == 413
    assert taken <= MIB + 64 * 1024


def test_a_body_that_trickles_is_not_waited_for(asgi: Asgi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/plans", "headers": headers, "query_string": b""}
    asyncio.run(asgi().app(scope, receive, send))

    assert (sent[0]["status"], dict(sent[0]["headers"])[b"connection"]) == (408, b"close")
    assert json.loads(sent[1]["body"])["problem"] == "the body did not arrive within 0.2 s"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_gigabyte_is_refused_by_a_service_that_does_not_hold_it(service: Any, chunked: bool) -> None:
    before = replica_bytes()
    where = urlsplit(service.base_url)
    head = (
        f"POST /v1/plans HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        + ("Transfer-Encoding: chunked" if chunked else f"Content-Length: {1000 * MIB}")
        + "\r\n\r\n"
    )
    with socket.create_connection((where.hostname, where.port), timeout=300) as connection:
        connection.sendall(head.encode())
        answer = send_until_answered(connection, chunked)

    assert answer.startswith(b"HTTP/1.1 413 ")
    # Ray reads ahead of what the replica checks, for as long as the refusal takes (direct_ingress_http_util.py).
    assert replica_bytes() - before < 200 * MIB
    assert httpx.get(f"{service.base_url}/livez").status_code == 200


def send_until_answered(connection: socket.socket, chunked: bool) -> bytes:
    """A client that does not listen while it sends, as curl's and others'."""
    part = bytes(MIB)
    try:
        for _ in range(1000):
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        connection.sendall(b"0\r\n\r\n" if chunked else b"")
    except OSError:
        pass  # it was hung up upon: the answer lies in our buffer
    try:
        return connection.recv(65536)
    except OSError:
        return b"HTTP/1.1 413 (cut off)"


def replica_bytes() -> int:
    """The resident memory of the replica that answers."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"ServeReplica:planner:Planner" in (folder / "cmdline").read_bytes():
                return int((folder / "statm").read_text().split()[1]) * 4096
        except OSError:
            continue
    pytest.fail("there is no replica")


def test_whatever_the_description_allows_or_not_is_answered_as_described(service: Any) -> None:
    """Requests that schemathesis makes from the OpenAPI document: right, wrong, and worse."""
    schema = schemathesis.openapi.from_url(f"{service.base_url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    asked = 0

    def ask_all(operation: Any, most: int, number: int) -> None:
        @seed(number)
        @settings(max_examples=most, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            case.validate_response(case.call(timeout=300), checks=CHECKS)

        ask()

    for number, operation in enumerate(operations):
        ask_all(operation, EXAMPLES_IN_ALL // len(operations), number)
    # Those without parameters had one example only; those with bodies take the rest.
    bodies = [operation for operation in operations if operation.method.upper() in ("POST", "PUT")]
    rest = -(-(EXAMPLES_IN_ALL - asked) // len(bodies))
    for number, operation in enumerate(bodies):
        ask_all(operation, rest, EXAMPLES_IN_ALL + number)

    assert asked >= EXAMPLES_IN_ALL * 0.99
