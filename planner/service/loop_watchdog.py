"""Ends a process whose event loop stands still, so that whoever supervises it starts another."""

from __future__ import annotations

import asyncio
import faulthandler

from starlette.types import ASGIApp, Receive, Scope, Send

BEATS = 5
"""How often within its time the loop says that it goes."""
_STANDARD_ERROR = 2
"""The file itself: whatever stands in sys.stderr may need Python's lock."""


class LoopWatchdog:
    """ASGI middleware: from the application's startup to its shutdown its event loop has to go.

    The time is kept by a thread that needs no lock of Python's (faulthandler), so that a call into C that holds the
    lock is found out too. It writes where every thread stands to standard error, and ends the process with 1.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        """`seconds` is how long the loop may stand still; 0: for ever."""
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" or not self._seconds:
            await self._app(scope, receive, send)
            return
        beating = asyncio.create_task(_beat(self._seconds))
        try:
            await self._app(scope, receive, send)
        finally:
            beating.cancel()
            faulthandler.cancel_dump_traceback_later()


async def _beat(seconds: float) -> None:
    while True:
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STANDARD_ERROR)
        await asyncio.sleep(seconds / BEATS)
