"""The API of a Kubernetes cluster, emulated over a socket: versions, server-side apply, watches that end and expire.

kmock keeps the objects and serves lists and watches; what Kueue's controllers lean on beyond that is added here.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attrs
import kmock
import yaml

APPLY = "application/apply-patch+yaml"
_KEYS = {"admissionChecks": "name", "conditions": "type"}
"""Lists of Kueue's types that are maps by a key (apis/kueue/v1beta2/workload_types.go)."""

Predicate = Callable[[kmock.Request], bool]


@attrs.define(kw_only=True)
class _Emulator(kmock.KubernetesEmulator):
    version: int = 100
    oldest: int = 0
    """Watches from before are too old."""
    faults: list[tuple[Predicate, int]] = attrs.field(factory=list)
    before: list[tuple[Predicate, Callable[[], None]]] = attrs.field(factory=list)
    """What else happens when a request arrives, before it is answered; each once."""
    watches_end: asyncio.Event = attrs.field(factory=asyncio.Event)
    last_words: dict[str, Any] = attrs.field(factory=dict)

    async def _handle(self, request: kmock.Request) -> Any:
        for each in [each for each in self.before if each[0](request)]:
            self.before.remove(each)
            each[1]()
        for fault in [fault for fault in self.faults if fault[0](request)][:1]:
            self.faults.remove(fault)
            raise kmock.KubernetesError(fault[1], "Fault", "a fault of this test")
        if request.action in (kmock.action.CREATE, kmock.action.UPDATE) and isinstance(request.data, dict):
            object.__setattr__(request, "data", self._written(request))  # kmock knows its requests by identity
        if request.action is kmock.action.WATCH and int(request.params.get("resourceVersion") or 0) < self.oldest:
            raise kmock.KubernetesError(410, "Expired", "too old resource version")
        return await super()._handle(request)

    def _written(self, request: kmock.Request) -> dict[str, Any]:
        """What is stored, as a merge patch: it replaces lists as a whole."""
        data = request.data
        if request.action is kmock.action.UPDATE:
            now = self.objects[request.resource, request.namespace, request.name].raw
            asked = data.get("metadata", {}).get("resourceVersion")
            if asked and asked != now["metadata"]["resourceVersion"]:
                raise kmock.KubernetesError(409, "Conflict", "the object has been modified")
            if request.headers["Content-Type"] == APPLY:
                assert request.params["fieldManager"]
                data = _applied(now, data)
        self.version += 1
        return {**data, "metadata": {**data.get("metadata", {}), "resourceVersion": str(self.version)}}

    async def _serve_list(self, request: kmock.Request) -> Any:
        found = await super()._serve_list(request)
        return {**found, "kind": "List", "metadata": {"resourceVersion": str(self.version)}}

    async def _serve_watch(self, request: kmock.Request) -> AsyncIterator[Any]:
        """Without what the list has told already, and not without end."""
        since = int(request.params.get("resourceVersion") or 0)
        ended = self.watches_end
        events = super()._serve_watch(request)
        while True:
            following, end = asyncio.ensure_future(anext(events)), asyncio.ensure_future(ended.wait())
            try:
                await asyncio.wait({following, end}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                end.cancel()
                following.cancel()
            if not following.done():
                if self.last_words:
                    yield self.last_words
                return
            event = following.result()
            known = event and event["type"] == "ADDED" and int(event["object"]["metadata"]["resourceVersion"]) <= since
            if not known:
                yield event

    def end_watches(self, last_words: dict[str, Any]) -> None:
        self.last_words = last_words
        self.watches_end.set()
        self.watches_end = asyncio.Event()


def _applied(now: Any, given: Any, name: str = "") -> Any:
    if isinstance(given, dict):
        before = now if isinstance(now, dict) else {}
        return {key: _applied(before.get(key), value, key) for key, value in given.items()}
    if isinstance(given, list) and name in _KEYS:
        key = _KEYS[name]
        entries = {each[key]: each for each in now or []}
        for each in given:
            entries[each[key]] = {**entries.get(each[key], {}), **each}
        return list(entries.values())
    return given


@dataclass
class Cluster:
    """One cluster of a test, in a thread of its own."""

    kubeconfig: Path
    _loop: asyncio.AbstractEventLoop
    _emulator: _Emulator
    _server: kmock.Server | None = None
    _port: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> list[kmock.Request]:
        return list(self._emulator._requests)

    def start(self) -> None:
        self._call(self._start())

    def stop(self) -> None:
        """Nobody listens any more, and every watch breaks off. What was stored stays."""
        self._call(self._stop())

    def add(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        return self._send("POST", path, document)

    def merge(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        return self._send("PATCH", path, document)

    def get(self, path: str) -> dict[str, Any]:
        return self._send("GET", path, None)

    def remove(self, path: str) -> None:
        self._send("DELETE", path, None)

    def declare(self, *resources: str) -> None:
        for each in resources:
            self._emulator.resources[each] = {}

    def fails_once(self, when: Predicate, status: int) -> None:
        """The next such request gets this status."""
        self._emulator.faults.append((when, status))

    def meanwhile(self, when: Predicate, happens: Callable[[], None]) -> None:
        """Something else happens just before the next such request is answered."""
        self._emulator.before.append((when, happens))

    def change(self, key: tuple[str, str | None, str], patch: dict[str, Any]) -> None:
        """Somebody else's write, within the server's own thread and unseen by watches."""
        self._emulator.version += 1
        metadata = {"resourceVersion": str(self._emulator.version)}
        self._emulator.objects[key].patch({**patch, "metadata": {**patch.get("metadata", {}), **metadata}})

    def forget_history(self) -> None:
        """Watches from any version until now are too old."""
        self._emulator.version += 1
        self._emulator.oldest = self._emulator.version

    def end_watches(self, status: int = 0) -> None:
        """Every watch ends, as it does after some minutes; with an error as its last event if a status is given."""
        error = {"type": "ERROR", "object": {"kind": "Status", "code": status, "message": "too old resource version"}}
        self._loop.call_soon_threadsafe(self._emulator.end_watches, error if status else {})

    async def _start(self) -> None:
        self._server = kmock.Server(self._emulator, port=self._port)
        await self._server.__aenter__()
        self._port = self._server.port
        self.kubeconfig.write_text(yaml.safe_dump(kubeconfig(self.url)))

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            runner = server.server.runner
            assert runner is not None
            runner._shutdown_timeout = 0.1  # watches never end by themselves
            await server.__aexit__(None, None, None)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(300)

    def _send(self, method: str, path: str, document: Any) -> dict[str, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


@contextmanager
def emulated_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that runs; its kubeconfig lies in the folder."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def enter() -> _Emulator:
        return await _Emulator().__aenter__()

    emulator = asyncio.run_coroutine_threadsafe(enter(), loop).result(300)
    found = Cluster(folder / "kubeconfig.yaml", loop, emulator)
    found.start()
    try:
        yield found
    finally:
        found.stop()
        asyncio.run_coroutine_threadsafe(_end(emulator), loop).result(300)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(emulator: _Emulator) -> None:
    await emulator.__aexit__(None, None, None)
    left = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for each in left:
        each.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def until(true: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What it returns as soon as that is true; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)
    return found
