"""The cluster's API as the hooks ask it, and what they make of one that is strange."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificate_authority import Authority
from quiet_server import QuietServer

from planner.admission.kubernetes_api import Api, ApiError, path_of
from planner.errors import SettingError


@pytest.fixture
def api(answering: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Of an API server that answers as a test wants."""
    named = {"cluster": "c", "user": "u"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": answering.url}}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
        "contexts": [{"name": "x", "context": named}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return Api(seconds=2)


def test_it_asks_with_the_token_of_the_kubeconfig(api: Api, answering: Any) -> None:
    answering.says(200, {"kind": "ConfigMap"})

    assert api.get(path_of("", "v1", "configmaps", "a", namespace="n")) == {"kind": "ConfigMap"}
    (asked,) = answering.asked
    assert (asked.method, asked.path) == ("GET", "/api/v1/namespaces/n/configmaps/a")
    headers = {name.lower(): value for name, value in asked.headers.items()}
    assert (headers["authorization"], headers["user-agent"]) == ("Bearer a-token", "planner-admission")


def test_a_list_is_read_page_by_page(api: Api, answering: Any) -> None:
    answering.says(200, {"items": [1], "metadata": {"continue": "a b"}})
    answering.says(200, {"items": [2], "metadata": {"continue": ""}})

    assert [page["items"] for page in api.pages("/x", limit=1)] == [[1], [2]]
    assert [asked.path for asked in answering.asked] == ["/x?limit=1", "/x?limit=1&continue=a+b"]


def test_an_apply_takes_fields_over_as_planner(api: Api, answering: Any) -> None:
    answering.says(200, {})

    api.apply("/x/status", {"status": {"a": 1}})

    (asked,) = answering.asked
    assert (asked.method, asked.path) == ("PATCH", "/x/status?fieldManager=planner&force=true")
    headers = {name.lower(): value for name, value in asked.headers.items()}
    assert (headers["content-type"], asked.body) == ("application/apply-patch+yaml", {"status": {"a": 1}})


@pytest.mark.parametrize(
    ("status", "document", "headers", "said"),
    [
        (403, {"message": "jobs is forbidden"}, {}, "answers 403: jobs is forbidden"),
        (409, {"message": "a\x1b[31m\nb"}, {}, "answers 409: a [31m b"),
        (500, b"<html>", {}, "answers 500"),
        (302, b"", {"Location": "http://127.0.0.1:1/elsewhere"}, "answers 302"),
        (200, b"<html>", {}, "what answers is not a Kubernetes API"),
        (200, [1], {}, "what answers is not a Kubernetes API"),
        (200, b"[" * 100_000, {}, "what answers is not a Kubernetes API"),
    ],
)
def test_what_is_refused_or_strange_is_said(
    api: Api, answering: Any, status: int, document: Any, headers: dict[str, str], said: str
) -> None:
    answering.says(status, document, **headers)

    with pytest.raises(ApiError) as raised:
        api.get("/x")
    assert said in raised.value.problem
    assert raised.value.status == (status if status >= 300 else 0)
    assert len(answering.asked) == 1  # neither followed elsewhere with the token, nor asked again


def test_an_api_that_hangs_costs_the_timeout(answering: Any, api: Api) -> None:
    answering.says(200, {})
    answering.held.clear()

    with pytest.raises(ApiError, match="timed out"):
        api.get("/x", seconds=0.2)


def test_a_watch_tells_events_and_ends_with_what_the_server_says(api: Api, answering: Any) -> None:
    events = b'{"type": "ADDED", "object": {"a": 1}}\n\n{"type": "ERROR", "object": {"code": 410, "message": "old"}}\n'
    answering.says(200, events)
    watch = api.watch("/x", "7", 5)

    assert next(watch) == {"type": "ADDED", "object": {"a": 1}}
    with pytest.raises(ApiError, match="old") as raised:
        next(watch)
    assert raised.value.status == 410
    assert answering.asked[0].path == "/x?watch=true&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=5"


@pytest.mark.parametrize(("answer", "said"), [(b"<html>\n", "speaks no JSON"), (b"[1]\n", "speaks no JSON")])
def test_a_watch_that_speaks_something_else_is_an_error(api: Api, answering: Any, answer: bytes, said: str) -> None:
    answering.says(200, answer)

    with pytest.raises(ApiError, match=said):
        list(api.watch("/x", "7", 5))


@pytest.fixture
def in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pod's service account, and an API server over TLS whose CA it is told; the folder of its files."""
    authority = Authority(tmp_path)
    authority.issue(tmp_path / "tls.crt", tmp_path / "tls.key")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"told": self.headers["Authorization"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    (tmp_path / "token").write_text("of-this-pod")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
    for name, file in (("TOKEN", "token"), ("CERT", "ca.crt")):
        monkeypatch.setattr(f"kubernetes.config.incluster_config.SERVICE_{name}_FILENAME", str(tmp_path / file))
    yield tmp_path
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("in_a_pod")
def test_a_pod_speaks_as_its_service_account_to_the_server_that_its_ca_knows() -> None:
    assert Api().get("/x") == {"told": "bearer of-this-pod"}


def test_a_server_that_the_ca_does_not_know_gets_no_token(in_a_pod: Path) -> None:
    Authority(in_a_pod)  # another one, in the place of the first

    with pytest.raises(ApiError, match="certificate verify failed"):
        Api().get("/x")


def test_a_pod_without_a_token_is_not_set_up(in_a_pod: Path) -> None:
    (in_a_pod / "token").unlink()

    with pytest.raises(SettingError, match="there is no way to the cluster"):
        Api()


def test_names_are_parts_of_a_path_whatever_they_hold() -> None:
    assert (
        path_of("batch", "v1", "jobs", "../x?y", namespace="a/b") == "/apis/batch/v1/namespaces/a%2Fb/jobs/..%2Fx%3Fy"
    )
