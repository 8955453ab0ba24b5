"""`planner serve` on a busy machine: what is slow is said and waited for, what does not come is named."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from quiet_server import QuietServer

from planner.service import local_ray, server
from planner.service.errors import StartError
from planner.settings import Settings

TIMED_OUT = "The current node timed out during startup. This could happen because some of the raylet failed."
"""What ray 2.60 says of its own processes after 30 s."""


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "planner.service")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_ray_that_does_not_start_is_named_and_its_processes_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def init(**_: Any) -> None:
        raise Exception(TIMED_OUT)

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: ended.append("ray"))
    monkeypatch.setattr(local_ray, "end_processes", ended.append)

    with pytest.raises(StartError) as found, local_ray.local_ray(tmp_path):
        pass

    assert found.value.problem == f"Ray does not start: {TIMED_OUT}"
    assert ended == ["ray", tmp_path]


def test_a_ray_that_cannot_be_joined_is_a_wrong_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("Could not read '127.0.0.1:1' from GCS.")

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("ray.init", init)

    with pytest.raises(StartError, match=r"RAY_ADDRESS: Ray does not start: Could not read"), local_ray.joined_ray():
        pass


@pytest.fixture
def serve_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str] | None]:
    """A service whose Ray is late so many times, and that is told to end after `ends_after` of them; which of its parts
    are lost, None if it ended."""
    monkeypatch.setattr("planner.service.front_proxy.listener", lambda *_: contextlib.nullcontext())
    proxy = contextlib.nullcontext(SimpleNamespace(gave_up=False))
    monkeypatch.setattr("planner.service.front_proxy.front_proxy", lambda *_: proxy)
    monkeypatch.setattr(server, "_application", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(local_ray, "sweep_dead_instances", list)

    def serve(late: int, ends_after: int | None = None) -> list[str] | None:
        ended, tries = threading.Event(), [0]

        @contextlib.contextmanager
        def ray(_: Path) -> Iterator[None]:
            tries[0] += 1
            if tries[0] == ends_after:
                ended.set()
            if tries[0] <= late:
                raise StartError(f"Ray does not start: {TIMED_OUT}")
            yield

        monkeypatch.setattr(local_ray, "local_ray", ray)
        with server._on_its_own_ray(Settings(), "127.0.0.1", 1, ended) as lost_parts:
            return None if lost_parts is None else lost_parts()

    return serve


def test_a_ray_that_is_late_is_started_again_and_that_is_said(
    serve_on: Callable[..., list[str] | None], said: Callable[[], list[str]]
) -> None:
    assert serve_on(late=2) == []

    assert said() == [
        "Ray is starting",
        f"Ray does not start: {TIMED_OUT}; it is started again",
        f"Ray does not start: {TIMED_OUT}; it is started again",
        "Ray is up, the processes of the service are starting",
    ]


def test_a_service_that_is_told_to_end_meanwhile_does_not_try_again(
    serve_on: Callable[..., list[str] | None], said: Callable[[], list[str]]
) -> None:
    assert serve_on(late=100, ends_after=1) is None
    assert said() == ["Ray is starting"]


@pytest.fixture
def unready() -> Iterator[str]:
    """The address of a service that is not ready three times, and then is."""
    answers = [503, 503, 503]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop() if answers else 200)
            self.end_headers()
            self.wfile.write(b'{"status": 503, "problem": "no tracing process"}')

        def log_message(self, *_: Any) -> None:
            pass

    found = QuietServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    found.server_close()


def test_what_is_waited_for_is_said_now_and_then(
    unready: str, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SAY_SECONDS", 0.0)

    assert server._is_ready(unready, threading.Event())

    assert [re.sub("[0-9]+ s", "N s", line) for line in said()] == [
        "the processes of the service are up, those that plan load PyTorch",
        *["not ready after N s: no tracing process"] * 3,
    ]


def test_a_service_that_does_not_get_ready_says_what_is_missing(unready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READY_SECONDS", 0.01)

    with pytest.raises(StartError, match=r"not ready within 0\.01 s: no tracing process"):
        server._is_ready(unready, threading.Event())
