"""What a Prometheus scrapes in tests: the interface on a history, and exporters of GPUs that do not exist."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import uvicorn
from quiet_server import QuietServer

from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.service.local_ray import free_ports
from planner.settings import Settings


@contextmanager
def serving(history: History, counters: Counters) -> Iterator[int]:
    """The interface over HTTP; nobody plans here. Gives its port."""
    (port,) = free_ports(1)
    plan_provider: Any = None
    app = interface(Dependencies(settings=Settings(), history=history, plan_provider=plan_provider, counters=counters))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(timeout=300)


@contextmanager
def exporting(told: str) -> Iterator[int]:
    """What exporters of GPUs would tell, to whoever asks. Gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(told.encode())

        def log_message(self, *_: object) -> None: ...

    (port,) = free_ports(1)
    server = QuietServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
