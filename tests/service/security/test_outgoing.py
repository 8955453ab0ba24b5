"""The service asks nobody for anything that a job names, and whoever of us asks somebody waits for a limited time."""

from __future__ import annotations

import ast
import json
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from quiet_server import QuietServer

import planner
from planner.errors import PlannerError
from planner.job.loading import load_document, load_yaml
from planner.planning.plan import plan_job
from planner.service.http.openapi import EXAMPLE_JOB
from planner.truth.measuring.job_reports import to_service

ROOT = Path(str(planner.__file__)).parent
CONNECTS = ("urlopen", "create_connection", "HTTPConnection", "HTTPSConnection", "_opener.open")
RUNS_IN = ("service", "admission")
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whom anybody in this process tried to reach, or to look up."""
    found: list[Any] = []

    def connect(_: socket.socket, address: Any) -> None:
        found.append(address)
        raise OSError("nobody is reached from here")

    def look_up(host: Any, *_: Any, **__: Any) -> None:
        found.append(host)
        raise OSError("nobody is looked up from here")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


@pytest.mark.parametrize(
    "named",
    [
        {"model": {"hf_config": "http://169.254.169.254/latest/meta-data"}},
        {"model": {"hf_config": "meta-llama/Llama-3.1-8B"}},
        {"model": {"hf_config": "file:///etc/passwd"}},
        {"model": {"factory": "shop:model", "factory_path": "http://169.254.169.254/code"}},
        {"trainer": {"arguments": {"deepspeed": "https://169.254.169.254/ds.json"}}},
        {"metadata": {"name": "http://169.254.169.254/"}},
    ],
)
def test_an_address_in_a_job_is_not_followed(asked: list[Any], named: dict[str, Any]) -> None:
    document = {**EXAMPLE_JOB, **named}
    for load in (lambda: load_document(document, "the body"), lambda: load_yaml(json.dumps(document), "the body")):
        try:
            job = load()
        except PlannerError:
            continue
        if job.model.decoder is not None:
            plan_job(job)

    assert asked == []


@pytest.mark.parametrize(
    "said",
    [
        {"_name_or_path": "http://169.254.169.254/model"},
        {"_name_or_path": "meta-llama/Llama-3.1-8B"},
        {
            "auto_map": {
                "AutoConfig": "somebody/model--code.Config",
                "AutoModelForCausalLM": "somebody/model--code.Model",
            }
        },
        {"model_type": "nothing-that-is-known"},
    ],
)
def test_a_config_that_points_elsewhere_fetches_nothing(asked: list[Any], said: dict[str, Any]) -> None:
    document = {**EXAMPLE_JOB, "model": {"hf_config": {**LLAMA, **said}}}
    with suppress(PlannerError):
        plan_job(load_document(document))

    assert asked == []


def test_a_report_and_its_token_follow_no_redirect() -> None:
    got: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            got.append(self.path)
            self.send_response(307 if self.path.startswith("/v1") else 200)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
            self.end_headers()

        do_GET = do_PUT  # noqa: N815  names of http.server

        def log_message(self, *_: object) -> None: ...

    server = QuietServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        with pytest.raises(OSError, match="307"):
            to_service(f"http://127.0.0.1:{server.server_port}", "a-token")({"system": "ray", "id": "1"})
    finally:
        server.shutdown()
        server.server_close()

    assert set(got) == {"/v1/jobs/ray/1"}


def test_whoever_connects_says_for_how_long() -> None:
    calls = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", call)
        for path in ROOT.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(CONNECTS)
    ]

    assert len(calls) >= 3  # the client of the hooks, the callback, planner serve
    assert [place for place, call in calls if not _is_limited(call)] == []


def test_a_program_that_the_service_or_a_hook_runs_is_limited() -> None:
    calls = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", call)
        for room in RUNS_IN
        for path in (ROOT / room).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("subprocess.run", "subprocess.check_output", "subprocess.check_call")
    ]

    assert calls
    assert [place for place, call in calls if not _is_limited(call)] == []


def test_a_call_without_a_limit_would_be_seen() -> None:
    for source, limited in (
        ("urlopen(request)", False),
        ("urlopen(request, timeout=None)", False),
        ("urlopen(r, timeout=3)", True),
    ):
        call = ast.parse(source, mode="eval").body
        assert isinstance(call, ast.Call)
        assert _is_limited(call) is limited


def _is_limited(call: ast.Call) -> bool:
    said = [each.value for each in call.keywords if each.arg == "timeout"]
    return bool(said) and not (isinstance(said[0], ast.Constant) and said[0].value is None)
