"""Serves `/livez` and `/readyz` over plain HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from planner.errors import SettingError


def serve_health(host: str, port: int, live: Callable[[], bool], ready: Callable[[], bool]) -> ThreadingHTTPServer:
    """Answers `GET /livez` and `/readyz` with 200 or 503, in threads of its own. Raises SettingError."""
    asked = {"/livez": live, "/readyz": ready}

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            question = asked.get(self.path)
            status = 404 if question is None else 200 if question() else 503
            content = {200: b"ok\n", 404: b"not here\n", 503: b"no\n"}[status]
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise SettingError(f"port {port} cannot be listened on: {error.strerror}", place="--health-port") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
