"""Which hosts a request may name, and what every answer says to browsers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from planner.service.server import _read_settings

Asgi = Callable[..., TestClient]


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:8642", "127.0.0.1:8642", "[::1]:8642", "10.1.2.3:8000", "planner.example.org",
        "PLANNER.example.org:8642", "planner.example.org.", "a.localhost:1",
    ],
)  # fmt: skip
def test_a_host_that_is_expected_is_answered(asgi: Asgi, host: str) -> None:
    client = asgi(hosts="localhost, Planner.example.org")

    assert client.get("/v1/plans", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8642", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost", "",
        "planner.example.org@evil.example", "[::1", "x" * 5000,
    ],
)  # fmt: skip
def test_a_host_that_nobody_expects_is_refused(asgi: Asgi, host: str) -> None:
    """DNS rebinding: a page's own name points to this machine, and its scripts read what is here."""
    answers = [
        asgi(hosts="localhost, planner.example.org").request(method, path, headers={"Host": host})
        for method, path in (("GET", "/v1/plans"), ("GET", "/"), ("GET", "/metrics"), ("POST", "/v1/plans"))
    ]

    assert [answer.status_code for answer in answers] == [421] * 4
    assert answers[0].json()["place"] == "Host"
    assert answers[0].json()["remedy"] == "if it is one, the operator adds it to PLANNER_HOSTS"


def test_without_a_list_any_host_is_answered(asgi: Asgi) -> None:
    assert asgi().get("/v1/plans", headers={"Host": "planner.team-a.svc.cluster.local"}).status_code == 200


@pytest.mark.parametrize(
    ("address", "named", "hosts"),
    [
        ("127.0.0.1", "", "localhost"),
        ("::1", "", "localhost"),
        ("localhost", "", "localhost"),
        ("127.0.0.1", "planner.example.org", "planner.example.org"),
        ("0.0.0.0", "", ""),
        ("0.0.0.0", "planner.example.org", "planner.example.org"),
    ],
)
def test_what_only_this_machine_reaches_expects_no_other_name(
    monkeypatch: pytest.MonkeyPatch, address: str, named: str, hosts: str
) -> None:
    monkeypatch.setenv("PLANNER_HOSTS", named)

    assert _read_settings("", address).hosts == hosts


def test_every_answer_forbids_browsers_to_guess_what_it_is(asgi: Asgi) -> None:
    answers = [asgi().get(path) for path in ("/v1/plans", "/livez", "/", "/openapi.json", "/nothing", "/metrics")]
    answers += [asgi(hosts="localhost").get("/v1/plans"), asgi(most_at_once=0).get("/v1/plans")]

    assert [answer.headers.get_list("x-content-type-options") for answer in answers] == [["nosniff"]] * 8
    assert [answer.status_code for answer in answers[-2:]] == [421, 429]
