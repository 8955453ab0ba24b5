"""HAProxy before replicas that die, hang or are not there: callers get an answer, and are asked for nothing twice."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.errors import PlannerError
from planner.service import front_proxy as front_proxy_module
from planner.service.front_proxy import front_proxy, listener
from planner.service.local_ray import free_port_range, free_ports

Eventually = Callable[..., Any]


@dataclass
class Replica:
    """Answers with its name, or drops whom it should answer."""

    name: str
    drops: bool = False
    resets: bool = False
    """Drops them as a process does that is killed before it has read them."""
    healthy: bool = True
    may_answer: threading.Event = field(default_factory=threading.Event)
    """What the callers of /slow wait for."""
    asked: list[str] = field(default_factory=list)

    def handler(replica) -> type[BaseHTTPRequestHandler]:  # noqa: N805  the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/-/healthz":
                    self._answer(200 if replica.healthy else 503, b"")
                    return
                replica.asked.append(f"{self.command} {self.path}")
                if replica.resets:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if replica.drops:
                    self.close_connection = True
                    return
                if self.path == "/slow":
                    replica.may_answer.wait()
                self._answer(200, replica.name.encode())

            do_POST = do_GET  # noqa: N815

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    @contextmanager
    def listening(self, port: int) -> Iterator[None]:
        with ThreadingHTTPServer(("127.0.0.1", port), self.handler()) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()


@dataclass
class Front:
    url: str
    ports: range
    process: Callable[[], int]

    def post(self, path: str, body: bytes = b"{}") -> httpx.Response:
        return httpx.post(f"{self.url}{path}", content=body, timeout=300)


@pytest.fixture
def front(tmp_path: Path, eventually: Eventually) -> Iterator[Front]:
    (port,), ports = free_ports(1), free_port_range()
    config = str(tmp_path / "front.cfg").encode()

    def process() -> int:
        return int(eventually(lambda: _processes_with(config, besides=os.getpid()), "no HAProxy", 20)[0])

    with listener("127.0.0.1", port) as listening, front_proxy(tmp_path, listening, ports, 60):
        yield Front(f"http://127.0.0.1:{port}", ports, process)
    assert _processes_with(config, besides=os.getpid()) == []


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many one address may have, of a proxy that is started after this."""
    monkeypatch.setattr(front_proxy_module, "MOST_CONNECTIONS", 40)
    monkeypatch.setattr(front_proxy_module, "ARRIVE_SECONDS", 4)
    return 20


def _processes_with(word: bytes, besides: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word in words and Path(os.fsdecode(words[0])).name == "haproxy" and int(each.name) != besides:
            found.append(int(each.name))
    return found


def test_without_a_replica_callers_are_told_when_to_come_again(front: Front, eventually: Eventually) -> None:
    eventually(lambda: front.post("/v1/plans").status_code == 503, "no answer")
    answer = front.post("/v1/plans")

    assert answer.headers["Content-Type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json() == {
        "type": "urn:planner:problem:service-unavailable",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "no replica is ready",
        "problem": "no replica is ready",
    }


def test_a_replica_anywhere_in_the_range_is_found_and_one_that_drains_is_left(
    front: Front, eventually: Eventually
) -> None:
    replica = Replica("the last")
    with replica.listening(front.ports[-1]):
        eventually(lambda: front.post("/v1/plans").status_code == 200, "not found")
        assert front.post("/v1/plans").text == "the last"
        replica.healthy = False
        eventually(lambda: front.post("/v1/plans").status_code == 503, "still asked")


@pytest.mark.parametrize("how", ["drops", "resets"])
def test_what_a_replica_drops_is_asked_of_another(front: Front, eventually: Eventually, how: str) -> None:
    good, bad = Replica("good"), Replica("bad", **{how: True})
    with good.listening(front.ports[0]), bad.listening(front.ports[1]):
        eventually(lambda: front.post("/v1/plans").status_code == 200 and bad.asked, "only one is asked")
        bad.asked.clear()
        with httpx.Client(base_url=front.url, timeout=300) as one_connection:
            answers = [one_connection.post("/v1/plans", content=b"x" * 20_000) for _ in range(20)]

    assert bad.asked
    assert {(each.status_code, each.text) for each in answers} == {(200, "good")}


def test_what_the_idle_replica_drops_is_asked_of_a_busy_one(front: Front, eventually: Eventually) -> None:
    busy, idle = Replica("busy"), Replica("idle")
    with busy.listening(front.ports[0]), ThreadPoolExecutor(3) as pool:
        # At first every port counts as a replica's, until it is asked.
        eventually(lambda: all(front.post("/v1/plans").status_code == 200 for _ in front.ports), "not found")
        waiting = [pool.submit(front.post, "/slow") for _ in range(3)]
        eventually(lambda: busy.asked.count("POST /slow") == 3, "it is not busy")
        try:
            with idle.listening(front.ports[1]):
                eventually(lambda: front.post("/v1/plans").text == "idle", "not found")
                idle.resets = True
                answers = [front.post("/v1/plans") for _ in range(10)]
        finally:
            busy.may_answer.set()
        waited = [each.result().text for each in waiting]

    assert [(each.status_code, each.text) for each in answers] == [(200, "busy")] * 10
    assert waited == ["busy"] * 3


def test_where_there_is_no_other_the_caller_is_told_to_come_again(front: Front, eventually: Eventually) -> None:
    bad = Replica("bad", resets=True)
    with bad.listening(front.ports[0]), httpx.Client(base_url=front.url, timeout=300) as one_connection:
        eventually(lambda: one_connection.post("/v1/plans") and bad.asked, "not found")
        answers = [one_connection.post("/v1/plans", content=b"x" * 20_000) for _ in range(20)]

    assert {each.status_code for each in answers} <= {502, 503}
    assert [each for each in answers if int(each.headers["Retry-After"]) < 1] == []


def test_a_validation_is_never_asked_for_twice(front: Front, eventually: Eventually) -> None:
    bad = Replica("bad", drops=True)
    with bad.listening(front.ports[0]):
        eventually(lambda: bad.asked or front.post("/v1/plans").status_code == 200, "not found")
        bad.asked.clear()
        answer = front.post("/v1/validations")

    assert bad.asked == ["POST /v1/validations"]
    assert (answer.status_code, answer.json()["problem"]) == (502, "the replica that worked on it has ended")
    assert int(answer.headers["Retry-After"]) >= 1


def test_what_ray_serve_says_of_itself_is_not_said_to_callers(front: Front, eventually: Eventually) -> None:
    replica = Replica("one")
    with replica.listening(front.ports[0]):
        eventually(lambda: front.post("/v1/plans").status_code == 200, "not found")
        replica.asked.clear()
        paths = ("/-/routes", "/-/healthz", "/%2D/routes", "/%2d%2Froutes")
        answers = [httpx.get(f"{front.url}{path}", timeout=300) for path in paths]

    assert {(each.status_code, each.json()["problem"]) for each in answers} == {(404, "there is no such path")}
    assert replica.asked == []


def test_half_sent_requests_of_one_address_leave_room_for_others_and_end_soon(
    few_connections: int, front: Front, eventually: Eventually
) -> None:
    port = int(front.url.rpartition(":")[2])
    with Replica("here").listening(front.ports[0]), ExitStack() as stack:
        eventually(lambda: all(front.post("/v1/plans").status_code == 200 for _ in front.ports), "not found")
        sockets = [stack.enter_context(socket.socket()) for _ in range(2 * few_connections)]
        refused = [half for half in sockets if not _sends_half(half, port)]
        other = stack.enter_context(socket.socket())
        other.bind(("127.0.0.2", 0))
        other.settimeout(30)
        other.connect(("127.0.0.1", port))
        other.sendall(b"GET /v1/plans HTTP/1.1\r\nHost: planner\r\nConnection: close\r\n\r\n")

        assert other.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert len(refused) >= few_connections - 1
        eventually(lambda: _answers(front), "its address is still refused", 20)


def _sends_half(connection: socket.socket, port: int) -> bool:
    """Half a request line; whether the connection stays."""
    connection.settimeout(0.03)
    try:
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /v1/pl")
        return connection.recv(1000) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def _answers(front: Front) -> bool:
    try:
        return front.post("/v1/plans").status_code == 200
    except httpx.TransportError:
        return False


def test_while_haproxy_is_started_again_nobody_is_refused(front: Front, eventually: Eventually) -> None:
    with Replica("here").listening(front.ports[0]), ThreadPoolExecutor(8) as pool:
        eventually(lambda: front.post("/v1/plans").status_code == 200, "not found")
        first = front.process()
        os.kill(first, signal.SIGKILL)
        eventually(lambda: first not in _processes_with(b"-db", besides=0), "it is still there")
        answers = list(pool.map(lambda _: front.post("/v1/plans"), range(8)))

    # It has to find out first which replicas there are.
    assert {each.status_code for each in answers} <= {200, 503}


def test_haproxy_ends_with_the_process_that_started_it(tmp_path: Path, eventually: Eventually) -> None:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from planner.service.local_ray import free_port_range, free_ports
        from planner.service.front_proxy import front_proxy, listener
        with listener("127.0.0.1", free_ports(1)[0]) as listening:
            with front_proxy(Path(sys.argv[1]), listening, free_port_range(), 60):
                time.sleep(600)
    """)
    config = str(tmp_path / "front.cfg").encode()
    starter = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        eventually(lambda: _processes_with(config, besides=starter.pid), "no HAProxy", 30)
    finally:
        starter.kill()
        starter.wait()

    eventually(lambda: not _processes_with(config, besides=starter.pid), "HAProxy has stayed", 10)


def test_a_port_that_is_taken_is_refused_with_a_remedy() -> None:
    (port,) = free_ports(1)
    with listener("127.0.0.1", port), pytest.raises(PlannerError) as refused:
        listener("127.0.0.1", port)

    assert f"nothing can listen on 127.0.0.1:{port}" in refused.value.problem
    assert "--port" in refused.value.remedy
