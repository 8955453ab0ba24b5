"""An HTTP server for fakes: a client that hangs up early is nobody's news, least of all another test's."""

from __future__ import annotations

from http.server import ThreadingHTTPServer


class QuietServer(ThreadingHTTPServer):
    """Errors of a request end that request; the usual server writes them to whatever standard error is just then."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass
