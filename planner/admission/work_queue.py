"""A work queue of keys as client-go's: each key once, never with two workers, some not before their time."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable


class WorkQueue:
    """May be used by several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due: dict[str, float] = {}
        self._order: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._again: dict[str, float] = {}
        self._changed = threading.Condition()
        self._closed = False

    def add(self, key: str, after: float = 0.0) -> None:
        """To be done after so many seconds, or earlier if that was wanted already."""
        with self._changed:
            due = self._now() + after
            waiting = self._again if key in self._busy else self._due
            if waiting.get(key, due) < due:
                return
            waiting[key] = due
            if waiting is self._due:
                heapq.heappush(self._order, (due, key))
            self._changed.notify()

    def take(self, seconds: float | None = None) -> str | None:
        """The key whose turn it is, which is the caller's until `done`; None after so many seconds, or at the end."""
        end = None if seconds is None else self._now() + seconds
        with self._changed:
            while not self._closed:
                key, wait = self._first()
                if key is not None:
                    self._busy.add(key)
                    return key
                if end is not None:
                    left = end - self._now()
                    if left <= 0:
                        return None
                    wait = left if wait is None else min(wait, left)
                self._changed.wait(wait)
            return None

    def done(self, key: str) -> None:
        """Ends the work on a key, as client-go's Done: if it was added meanwhile it waits again."""
        with self._changed:
            self._busy.discard(key)
            again = self._again.pop(key, None)
            if again is not None:
                self._due[key] = again
                heapq.heappush(self._order, (again, key))
            self._changed.notify()

    def close(self) -> None:
        """Nobody waits any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _first(self) -> tuple[str | None, float | None]:
        """The key that is due, or how long until one is."""
        while self._order:
            due, key = self._order[0]
            if self._due.get(key) != due:  # it was wanted earlier, and had its turn
                heapq.heappop(self._order)
                continue
            wait = due - self._now()
            if wait > 0:
                return None, wait
            heapq.heappop(self._order)
            del self._due[key]
            return key, None
        return None, None
