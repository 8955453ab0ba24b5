"""`planner serve`: a Ray of our own in this process and its children, the application in it, until a signal ends it."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from planner.errors import PlannerError, SettingError
from planner.settings import Settings

if TYPE_CHECKING:
    from ray.serve import Application

HOST, PORT = "127.0.0.1", 8642
READY_SECONDS = 300.0
"""PyTorch is loaded in seconds; where the paper GPU has to be built first, it takes most of a minute."""
LOOK_SECONDS = 1.0
NEEDED = ("ray", "fastapi", "sqlalchemy", "alembic", "prometheus_client", "torch", "transformers")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_serve(host: str = HOST, port: int = PORT, database: str = "") -> None:
    """Serve until SIGTERM or SIGINT; prints one line with the address on standard output when jobs can be planned.

    Raises SettingError for a setting, HistoryError for a database, PlannerError for a port that cannot be used, or if
    something is not installed.
    """
    ended = threading.Event()
    out, sys.stdout = sys.stdout, sys.stderr  # Ray talks on both
    try:
        with _signals(ended):
            refuse_incomplete_install()
            settings = settings_of(database)
            _refuse_port(host, port)
            _open_once(settings)
            if not ended.is_set():
                _serve(settings, host, port, out, ended)
    finally:
        sys.stdout = out


def settings_of(database: str) -> Settings:
    """What the environment says, with this database if one is named, found from wherever a replica runs."""
    settings = Settings.read({"database": database} if database else {}, os.environ)
    prefix, _, file = settings.database.partition(":///")
    if settings.database in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise SettingError(
            "a database in memory is not shared by the processes that serve",
            allowed="sqlite:///FILE, postgresql://USER:PASSWORD@HOST/NAME",
            place="database",
        )
    return replace(settings, database=f"sqlite:///{Path(file).resolve()}") if prefix == "sqlite" else settings


def refuse_incomplete_install() -> None:
    """Raises PlannerError where what the service stands on is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise PlannerError(
            f"the service needs what is not installed: {', '.join(missing)}", remedy="pip install 'planner[service]'"
        )


def _serve(settings: Settings, host: str, port: int, out: TextIO, ended: threading.Event) -> None:
    """Whatever was started by the end is ended on the way out; the end is looked for after each stage."""
    from planner.service.cluster import environment, joined_ray, local_ray, short_folder

    with contextlib.ExitStack() as stack:
        stack.enter_context(_only_own_lines())
        if os.environ.get("RAY_ADDRESS"):
            stack.enter_context(joined_ray())
        else:
            folder = stack.enter_context(short_folder())
            os.environ.update(environment(folder))
            stack.enter_context(local_ray(folder))
        stack.enter_context(_signals(ended))  # again: Ray's C++ has put its own handler, which aborts, below Python's
        if ended.is_set():
            return
        from planner.service.app import application

        address = stack.enter_context(_application(application(settings), host, port))
        if _is_ready(address, ended):
            print(f"planner is ready at {address}", file=out, flush=True)
            _wait_for_end(ended)


@contextlib.contextmanager
def _application(application: Application, host: str, port: int) -> Iterator[str]:
    from ray import serve

    from planner.service.app import NAME
    from planner.service.cluster import lost_parts

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(http_options={"host": host, "port": port})
    serve.run(application, name=NAME, route_prefix="/")
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{port}"
    finally:
        if not lost_parts():  # else nobody is there to end it
            # First the application, which answers those who wait, then what carries it.
            serve.delete(NAME)
            if not os.environ.get("RAY_ADDRESS"):
                serve.shutdown()  # type: ignore[no-untyped-call]


def _wait_for_end(ended: threading.Event) -> None:
    """Raises RuntimeError if this service's own Ray dies, which nothing mends: whoever supervises starts another."""
    from planner.service.cluster import lost_parts

    while not ended.wait(LOOK_SECONDS):
        # The signal that ended Ray may be on its way to this process too.
        if (lost := lost_parts()) and not ended.wait(LOOK_SECONDS):
            raise RuntimeError(f"the Ray of this service has died: {', '.join(lost)}")


def _is_ready(address: str, ended: threading.Event) -> bool:
    """Whether jobs can be planned; False if the end comes first. Raises RuntimeError if neither does."""
    until = time.monotonic() + READY_SECONDS
    reachable = address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    problem = ""
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{reachable}/readyz", timeout=10):
                return True
        except urllib.error.HTTPError as error:
            problem = error.read(1000).decode(errors="replace")
        except OSError as error:
            problem = str(error)
        if ended.wait(0.25):
            return False
    raise RuntimeError(f"the service was not ready within {READY_SECONDS:g} s: {problem}")


def _open_once(settings: Settings) -> None:
    """The store is brought to this schema, or refused, before anything is started."""
    from planner.history.store import History

    History.open(settings.database).close()


def _refuse_port(host: str, port: int) -> None:
    from planner.service.cluster import is_free

    if not 0 < port < 2**16:
        raise PlannerError(f"{port} is no port", allowed="1 to 65535", place="--port")
    if not is_free(port, host):
        raise PlannerError(
            f"nothing can listen on {host}:{port}: it is in use, or not an address of this machine",
            remedy="name another: planner serve --host HOST --port PORT",
            place="--port",
        )


@contextlib.contextmanager
def _signals(ended: threading.Event) -> Iterator[None]:
    """The event is set by a signal. A second, impatient one does not cut the end short."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        ended.set()

    before = {each: signal.signal(each, end) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _only_own_lines() -> Iterator[None]:
    """On standard error: our processes' JSON lines without Ray's prefix, and of Ray itself only what is no chatter."""
    before = sys.stderr
    sys.stderr = sys.stdout = _OwnLines(before)
    try:
        yield
    finally:
        sys.stderr, sys.stdout = before, before


_CHATTER = (" pid=", "(raylet", "SIGTERM handler is not set", "Token authentication is enabled")
"""Of Ray: which process said something, and what it does as we want it."""


class _OwnLines:
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
            elif any(each in line for each in _CHATTER):
                continue
            self._stream.write(line + "\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
