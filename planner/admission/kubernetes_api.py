"""The Kubernetes API for two hooks: objects read part by part, where what is not as the API has it is empty; a client
that gets an object, lists, watches, applies server-side."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from planner.errors import PlannerError, SettingError

MANAGER = "planner"
"""The field manager of what is applied."""
AGENT = "planner-admission"
"""As the API server's audit log has it."""
GONE, CONFLICT, NOT_FOUND, FORBIDDEN = 410, 409, 404, 403
_MOST_BYTES = 64 * 2**20
_LONGEST_LINE = 16 * 2**20
_CONNECT_SECONDS = 3.05


MOST = 2**24


def part(document: Any, *path: str) -> Mapping[str, Any]:
    """The object at this path of an object; empty where the API would have one and there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def parts(document: Any, *path: str) -> list[Mapping[str, Any]]:
    *parents, name = path
    return [part(item) for item in items(part(document, *parents).get(name))]


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def number(value: Any, otherwise: int = 0) -> int:
    """A count, as the API writes it: `8`, or the quantity `"8"`."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,8}", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, MOST)
    return otherwise


class ApiError(PlannerError):
    """The API server refused, or did not answer (`status` 0)."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Api:
    """One cluster. May be used by several threads."""

    def __init__(self, *, seconds: float = 5.0) -> None:
        """By KUBECONFIG if that is set, else as a pod of the cluster. Raises SettingError."""
        from kubernetes import client, config  # it takes a quarter of a second, and jobs without a ConfigMap need none

        settings = client.Configuration()
        settings.retries = False
        try:
            if files := os.environ.get("KUBECONFIG"):  # named here: the client looks when it is imported
                config.load_kube_config(files, client_configuration=settings, persist_config=False)
            else:
                config.load_incluster_config(client_configuration=settings)
        except (config.ConfigException, OSError, ValueError) as error:
            raise SettingError(
                f"there is no way to the cluster: {error}", allowed="a service account's token, or KUBECONFIG"
            ) from None
        self._client = client.ApiClient(settings)
        self._seconds = seconds

    def get(self, path: str, query: Mapping[str, str] | None = None, *, seconds: float | None = None) -> dict[str, Any]:
        """The JSON object at this path. Raises ApiError."""
        return self._json("GET", path, seconds, query=query)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ApiError."""
        return self._json("POST", path, body=body, kind="application/json")

    def apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply as `planner`; takes fields over that others wrote. Raises ApiError, 409 if a
        resourceVersion in the body is no longer the object's."""
        query = {"fieldManager": MANAGER, "force": "true"}
        return self._json("PATCH", path, query=query, body=body, kind="application/apply-patch+yaml")  # JSON is YAML

    def pages(self, path: str, limit: int = 500) -> Iterator[dict[str, Any]]:
        """A list, page by page. Raises ApiError."""
        query = {"limit": str(limit)}
        while True:
            page = self.get(path, query)
            yield page
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return
            query["continue"] = following

    def watch(self, path: str, version: str, seconds: int) -> Iterator[dict[str, Any]]:
        """Events since that resourceVersion, at most for so many seconds. Raises ApiError; 410 ask for a new list."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        answer = self._open("GET", path, seconds + 10, query=query)
        rest = b""
        try:
            if answer.status >= 300:
                raise _make_error(answer.status, answer.read(4096, decode_content=True))
            for chunk in answer.stream(2**16, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    raise ApiError(0, "an event of the watch is too long")
                for line in filter(bytes.strip, lines):
                    event = _object(line)
                    if event is None:
                        raise ApiError(0, "the watch speaks no JSON")
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise ApiError(int(status.get("code") or 0), str(status.get("message") or "the watch failed"))
                    yield event
        except ApiError:
            raise
        except Exception as error:
            raise ApiError(0, f"the watch broke off: {_short(error)}") from None
        finally:
            answer.close()

    def _json(self, method: str, path: str, seconds: float | None = None, **asked: Any) -> dict[str, Any]:
        answer = self._open(method, path, seconds or self._seconds, **asked)
        try:
            content = answer.read(_MOST_BYTES + 1, decode_content=True)
        except Exception as error:
            raise ApiError(0, f"the Kubernetes API broke off: {_short(error)}") from None
        finally:
            answer.release_conn()
        if answer.status >= 300:
            raise _make_error(answer.status, content)
        document = _object(content)
        if document is None or len(content) > _MOST_BYTES:
            raise ApiError(0, "what answers is not a Kubernetes API")
        return document

    def _open(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "",
    ) -> Any:
        """An answer of urllib3, not read yet."""
        from urllib3 import Timeout

        settings = self._client.configuration
        headers = {"Accept": "application/json", "User-Agent": AGENT, **({"Content-Type": kind} if kind else {})}
        try:
            for setting in settings.auth_settings().values():
                headers[setting["key"]] = setting["value"]
            return self._client.rest_client.pool_manager.request(
                method,
                f"{settings.host}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=Timeout(connect=min(_CONNECT_SECONDS, seconds), read=seconds),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except Exception as error:
            raise ApiError(0, f"the Kubernetes API cannot be reached: {_short(error)}") from None


def path_of(group: str, version: str, plural: str, *names: str, namespace: str = "") -> str:
    """The path of a resource, or of an object and its part in it."""
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    where = ["namespaces", namespace] if namespace else []
    return "/".join([root, *(quote(part, safe="") for part in [*where, plural, *names])])


def _make_error(status: int, content: bytes) -> ApiError:
    message = (_object(content) or {}).get("message")
    return ApiError(status, f"the Kubernetes API answers {status}" + (f": {_short(message)}" if message else ""))


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _short(value: object) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= 300 else text[:300] + "..."


WATCH_SECONDS = 240
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

_log = logging.getLogger("planner.admission")

Document = Mapping[str, Any]


class Follower:
    """Follows one kind of object. `path` may ask the API itself, at each new list; `on_list` gets all objects there
    are, in place of those known before, `on_change` one that was added, modified or deleted (`gone`)."""

    def __init__(
        self,
        api: Api,
        path: Callable[[], str],
        on_list: Callable[[Sequence[Document]], None],
        on_change: Callable[..., None],
        stopped: threading.Event,
    ) -> None:
        self._api, self._path, self._stopped = api, path, stopped
        self._on_list, self._on_change = on_list, on_change
        self._random = random.Random()
        self.beat = time.monotonic()
        """When it last did something; a watch may be silent for `WATCH_SECONDS`."""
        self.knows = False
        """Whether what it told last is what there is, as far as anybody can know."""

    def run(self) -> None:
        """Until it is stopped. Whatever fails is tried again, later each time."""
        pause, last_problem = _FIRST_PAUSE, ""
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._follow()
                return
            except ApiError as error:
                self.knows = self.knows and error.status == GONE
                if (
                    error.status != GONE and last_problem != error.problem
                ):  # an API that is away for an hour is one line
                    _log.warning("%s", error.problem)
                    last_problem = error.problem
            except Exception:
                _log.exception("what the API said could not be followed")
            self.beat = time.monotonic()
            if self.beat - began > _LONGEST_PAUSE:
                pause, last_problem = _FIRST_PAUSE, ""
            self._stopped.wait(pause * self._random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _follow(self) -> None:
        path = self._path()
        documents: list[Document] = []
        version = ""
        for page in self._api.pages(path):
            documents += [item for item in page.get("items") or [] if isinstance(item, dict)]
            version = str((page.get("metadata") or {}).get("resourceVersion", ""))
            self.beat = time.monotonic()
        self._on_list(documents)
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
                    self._on_change(document, gone=event.get("type") == "DELETED")
            self.beat = time.monotonic()
            if self.beat - began < _FIRST_PAUSE:  # a server that ends every watch at once is not asked without end
                self._stopped.wait(_FIRST_PAUSE)
