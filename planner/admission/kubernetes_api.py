"""A client of the Kubernetes API for two hooks: get an object, list, watch, apply server-side.

Credentials, their renewal and TLS are the official client's (`kubernetes`), since every kind of kubeconfig is its
business; objects stay plain JSON, since Kueue's come in two versions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
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

        found = client.Configuration()
        found.retries = False
        try:
            if files := os.environ.get("KUBECONFIG"):  # named here: the client looks when it is imported
                config.load_kube_config(files, client_configuration=found, persist_config=False)
            else:
                config.load_incluster_config(client_configuration=found)
        except (config.ConfigException, OSError, ValueError) as error:
            raise SettingError(
                f"there is no way to the cluster: {error}", allowed="a service account's token, or KUBECONFIG"
            ) from None
        self._client = client.ApiClient(found)
        self._seconds = seconds

    def get(self, path: str, query: Mapping[str, str] | None = None, *, seconds: float | None = None) -> dict[str, Any]:
        """The JSON object at this path. Raises ApiError."""
        return self._json("GET", path, query or {}, None, {}, seconds)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ApiError."""
        return self._json("POST", path, {}, body, {"Content-Type": "application/json"}, None)

    def apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply as `planner`; takes fields over that others wrote. Raises ApiError, 409 if a
        resourceVersion in the body is no longer the object's."""
        headers = {"Content-Type": "application/apply-patch+yaml"}  # JSON is YAML
        return self._json("PATCH", path, {"fieldManager": MANAGER, "force": "true"}, body, headers, None)

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
        answer = self._ask("GET", path, query, None, {}, seconds + 10)
        try:
            if answer.status >= 300:
                raise _make_error(answer.status, answer.read(4096, decode_content=True))
            yield from _events(answer)
        except ApiError:
            raise
        except Exception as error:
            raise ApiError(0, f"the watch broke off: {_short(error)}") from None
        finally:
            answer.close()

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        seconds: float | None,
    ) -> dict[str, Any]:
        answer = self._ask(method, path, query, body, headers, seconds or self._seconds)
        try:
            content = answer.read(_MOST_BYTES + 1, decode_content=True)
        except Exception as error:
            raise ApiError(0, f"the Kubernetes API broke off: {_short(error)}") from None
        finally:
            answer.release_conn()
        if answer.status >= 300:
            raise _make_error(answer.status, content)
        found = _object(content)
        if found is None or len(content) > _MOST_BYTES:
            raise ApiError(0, "what answers is no Kubernetes API")
        return found

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        seconds: float,
    ) -> Any:
        """An answer of urllib3, not read yet."""
        from urllib3 import Timeout

        settings = self._client.configuration
        sent = {"Accept": "application/json", "User-Agent": AGENT, **headers}
        try:
            for setting in settings.auth_settings().values():
                sent[setting["key"]] = setting["value"]
            return self._client.rest_client.pool_manager.request(
                method,
                f"{settings.host}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=sent,
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
    return "/".join([root, *(quote(each, safe="") for each in [*where, plural, *names])])


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    left = b""
    for chunk in answer.stream(2**16, decode_content=True):
        *lines, left = (left + chunk).split(b"\n")
        if len(left) > _LONGEST_LINE:
            raise ApiError(0, "an event of the watch is too long")
        for line in lines:
            if not line.strip():
                continue
            event = _object(line)
            if event is None:
                raise ApiError(0, "the watch speaks no JSON")
            if event.get("type") == "ERROR":
                status = event.get("object") or {}
                raise ApiError(int(status.get("code") or 0), str(status.get("message") or "the watch failed"))
            yield event


def _make_error(status: int, content: bytes) -> ApiError:
    said = (_object(content) or {}).get("message")
    return ApiError(status, f"the Kubernetes API answers {status}" + (f": {_short(said)}" if said else ""))


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _short(value: object) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= 300 else text[:300] + "..."
