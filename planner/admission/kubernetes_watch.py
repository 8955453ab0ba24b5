"""Follows one kind of Kubernetes objects by list and watch, also after broken connections and expired versions."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from planner.admission.kubernetes_api import GONE, Api, ApiError

WATCH_SECONDS = 240
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

_log = logging.getLogger("planner.admission")

Document = Mapping[str, Any]


class DocumentHandler(Protocol):
    """Who wants to know."""

    def on_list(self, documents: Sequence[Document]) -> None:
        """All that there are, in place of whatever was known."""

    def on_change(self, kind: str, document: Document) -> None:
        """One of them was `ADDED`, `MODIFIED` or `DELETED`."""


class Follower:
    """Follows one kind of object. `path` may ask the API itself, at each new list."""

    def __init__(self, api: Api, path: Callable[[], str], follows: DocumentHandler, stopped: threading.Event) -> None:
        self._api, self._path, self._follows, self._stopped = api, path, follows, stopped
        self._random = random.Random()
        self.beat = time.monotonic()
        """When it was last seen to do something; a watch may be silent for `WATCH_SECONDS`."""
        self.knows = False
        """Whether what it told last is what there is, as far as anybody can know."""

    def run(self) -> None:
        """Until it is stopped. Whatever fails is tried again, later each time."""
        pause = _FIRST_PAUSE
        said = ""
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._follow()
                return
            except ApiError as error:
                self.knows = self.knows and error.status == GONE
                if error.status != GONE and said != error.problem:  # an API that is away for an hour is one line
                    _log.warning("%s", error.problem)
                    said = error.problem
            except Exception:
                _log.exception("what the API said could not be followed")
            self.beat = time.monotonic()
            if self.beat - began > _LONGEST_PAUSE:
                pause, said = _FIRST_PAUSE, ""
            self._stopped.wait(pause * self._random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _follow(self) -> None:
        path = self._path()
        documents: list[Document] = []
        version = ""
        for page in self._api.pages(path):
            documents += [each for each in page.get("items") or [] if isinstance(each, dict)]
            version = str((page.get("metadata") or {}).get("resourceVersion", ""))
            self.beat = time.monotonic()
        self._follows.on_list(documents)
        self.knows = True
        while not self._stopped.is_set():
            began = time.monotonic()
            for event in self._api.watch(path, version, WATCH_SECONDS):
                self.beat = time.monotonic()
                document = event.get("object")
                if self._stopped.is_set() or not isinstance(document, dict):
                    break
                version = str((document.get("metadata") or {}).get("resourceVersion") or version)
                if event.get("type") != "BOOKMARK":
                    self._follows.on_change(str(event.get("type")), document)
            self.beat = time.monotonic()
            if self.beat - began < _FIRST_PAUSE:  # a server that ends every watch at once is not asked without end
                self._stopped.wait(_FIRST_PAUSE)
