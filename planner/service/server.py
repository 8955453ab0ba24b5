"""`planner serve`: runs Ray and the application from this process until a signal ends it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from planner.distribution import refuse_without
from planner.errors import PlannerError, SettingError
from planner.service import local_ray
from planner.service.errors import StartError
from planner.service.logs import start_logging
from planner.service.torch_versions import read_torch_versions
from planner.settings import Settings

HOST, PORT = "127.0.0.1", 8642
LONGEST_TRACES = 10.0
"""How many times the longest trace an answer may take: a queue before it, several rank classes, the advice."""
READY_SECONDS = 300.0
"""PyTorch is loaded in seconds; where the paper GPU has to be built first, it takes most of a minute."""
LOOK_SECONDS, SAY_SECONDS = 1.0, 15.0
"""Between looks at the parts of a service that runs; between words on one that starts."""
RAY_TRIES = 3
"""A start that was too slow has read Ray's files into memory for the next one."""
NEEDED = ("ray", "fastapi", "sqlalchemy", "alembic", "prometheus_client", "torch", "transformers")
_UP = "Ray is up, the processes of the service are starting"
_log = logging.getLogger("planner.service")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_serve(host: str = HOST, port: int = PORT, database: str = "") -> None:
    """Serve until SIGTERM or SIGINT; prints one line with the address on standard output when jobs can be planned.

    Raises SettingError for a setting, HistoryError for a database, StartError for a machine on which it does not come
    up, PlannerError for a port that cannot be used, or if something is not installed.
    """
    ended = threading.Event()
    out, sys.stdout = sys.stdout, sys.stderr  # Ray talks on both
    try:
        with _signals(ended):
            refuse_without(NEEDED, extra="service", user="the service")
            settings = _read_settings(database, host)
            start_logging(settings.log_level)
            _log.info("planner is loading")
            read_torch_versions(settings.torch_versions)
            if not 0 < port < 2**16:
                raise PlannerError(f"{port} is not a port", allowed="1 to 65535", place="--port")
            from planner.service.history.store import History

            # The store is brought to this schema, or refused, before anything is started.
            with History.open(settings.database) as history:
                _log.info("the history %s is open", history.place)
            if not ended.is_set():
                _serve(settings, host, port, out, ended)
    finally:
        sys.stdout = out


def _read_settings(database: str, host: str) -> Settings:
    """What the environment says, with this database if one is named, found from wherever a replica runs. Where only
    this machine reaches the host, no other name of it is expected: web pages must not reach it by names of theirs."""
    from planner.service.http.hosts import LOCALHOST, is_loopback

    settings = Settings.read({"database": database} if database else {}, os.environ)
    if is_loopback(host) and not settings.hosts:
        settings = replace(settings, hosts=LOCALHOST)
    prefix, _, file = settings.database.partition(":///")
    if settings.database in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise SettingError(
            "a database in memory is not shared by the processes that serve",
            allowed="sqlite:///FILE, postgresql://USER:PASSWORD@HOST/NAME",
            place="database",
        )
    return replace(settings, database=f"sqlite:///{Path(file).resolve()}") if prefix == "sqlite" else settings


def _serve(settings: Settings, host: str, port: int, out: TextIO, ended: threading.Event) -> None:
    """Whatever was started by the end is ended on the way out; the end is looked for after each stage."""
    with contextlib.ExitStack() as stack:
        # Our processes' JSON lines without Ray's prefix, and of Ray itself only what is not chatter.
        lines: Any = _OwnLinesOnly(sys.stderr)
        stack.enter_context(contextlib.redirect_stderr(lines))
        stack.enter_context(contextlib.redirect_stdout(lines))
        serving = _on_a_ray_that_runs if os.environ.get("RAY_ADDRESS") else _on_its_own_ray
        lost_parts = stack.enter_context(serving(settings, host, port, ended))
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        if lost_parts is None or not _is_ready(address, ended):
            return
        print(f"planner is ready at {address}", file=out, flush=True)
        while not ended.wait(LOOK_SECONDS):
            # Nothing mends this service's own Ray: its supervisor restarts it. The signal that ended Ray may be
            # on its way to this process too.
            if (lost := lost_parts()) and not ended.wait(LOOK_SECONDS):
                raise RuntimeError(f"the Ray of this service has died: {', '.join(lost)}")


@contextlib.contextmanager
def _on_its_own_ray(
    settings: Settings, host: str, port: int, ended: threading.Event
) -> Iterator[Callable[[], list[str]] | None]:
    """A Ray, the application and HAProxy before it; gives what says which of its parts are lost, None if it ended."""
    from planner.service.front_proxy import front_proxy, listener

    local_ray.sweep_dead_instances()
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(listener(host, port))
        folder = stack.enter_context(local_ray.instance_folder())
        replicas = local_ray.free_port_range()
        os.environ.update(local_ray.environment(folder, replicas))
        _log.info("Ray is starting")
        for tries_left in reversed(range(RAY_TRIES)):
            try:
                stack.enter_context(local_ray.local_ray(folder))
                break
            except StartError as error:
                if ended.is_set():
                    break
                if not tries_left:
                    raise
                _log.warning("%s; it is started again", error.problem)
        stack.enter_context(_signals(ended))  # again: Ray's C++ has put its own handler, which aborts, below Python's
        if ended.is_set():
            yield None
            return
        _log.info(_UP)
        longest = LONGEST_TRACES * settings.trace_seconds
        proxy = stack.enter_context(front_proxy(folder, listening, replicas, longest))
        (inner,) = local_ray.free_ports(1)
        stack.enter_context(_application(settings, "127.0.0.1", inner))
        yield lambda: local_ray.lost_parts() + ["HAProxy"] * proxy.gave_up


@contextlib.contextmanager
def _on_a_ray_that_runs(
    settings: Settings, host: str, port: int, ended: threading.Event
) -> Iterator[Callable[[], list[str]] | None]:
    """As :func:`_on_its_own_ray`, on the Ray at RAY_ADDRESS, whose own proxies answer at the port."""
    from planner.service.front_proxy import listener

    listener(host, port).close()
    with local_ray.joined_ray(), _signals(ended):
        if ended.is_set():
            yield None
            return
        _log.info(_UP)
        with _application(settings, host, port):
            yield list


@contextlib.contextmanager
def _application(settings: Settings, host: str, port: int) -> Iterator[None]:
    from ray import serve

    from planner.service.app import NAME, application, end_tracing

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    options = {"host": host, "port": port}
    try:
        serve.start(http_options=options)
    except TimeoutError:  # ray 2.60 gives its proxies a minute (HTTP_PROXY_TIMEOUT), and does not wait for them again
        _log.warning("the proxies of Ray Serve are slow; whether the service answers is seen when it is up")
        serve.start(http_options=options)
    serve.run(application(settings), name=NAME, route_prefix="/")
    try:
        yield
    finally:
        if not local_ray.lost_parts():  # else nobody is there to end it
            # First those who wait are answered, then the application ends, then what carries it.
            end_tracing(NAME)
            serve.delete(NAME)
            if not os.environ.get("RAY_ADDRESS"):
                serve.shutdown()  # type: ignore[no-untyped-call]


def _is_ready(address: str, ended: threading.Event) -> bool:
    """Whether jobs can be planned; False if the end comes first. Raises StartError if neither does."""
    began = said = time.monotonic()
    _log.info("the processes of the service are up, those that plan load PyTorch")
    reachable = address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    problem = ""
    while (now := time.monotonic()) < began + READY_SECONDS:
        try:
            with urllib.request.urlopen(f"{reachable}/readyz", timeout=10):
                return True
        except urllib.error.HTTPError as error:
            problem = error.read(1000).decode(errors="replace")
            with contextlib.suppress(ValueError, AttributeError):  # of a proxy before it, which speaks no JSON
                problem = str(json.loads(problem).get("problem", problem))
        except OSError as error:
            problem = str(error)
        if now >= said + SAY_SECONDS:
            _log.info("not ready after %.0f s: %s", now - began, problem)
            said = now
        if ended.wait(0.25):
            return False
    raise StartError(
        f"the service was not ready within {READY_SECONDS:g} s: {problem}",
        remedy="start it while the machine has less to do; what its processes said stands above",
    )


@contextlib.contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    """The event is set by a signal. A second, impatient one does not cut the end short."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        ended.set()

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_CHATTER = (" pid=", "(raylet", "SIGTERM handler is not set", "Token authentication is enabled")
"""Of Ray: which process said something, and what it does as we want it."""


class _OwnLinesOnly:
    """Standard error without what Ray tells of its processes. A line of ours begins with `{"time": `."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            at = line.find('{"time": ')
            if at >= 0:
                line = line[at:]
            elif any(mark in line for mark in _CHATTER):
                continue
            self._stream.write(line + "\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
