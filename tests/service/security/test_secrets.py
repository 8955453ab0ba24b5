"""Tokens and passwords: compared without telling how much of them was right, and told nobody."""

from __future__ import annotations

import hashlib
import hmac
import logging

import pytest
from starlette.testclient import TestClient

from planner.errors import SettingError
from planner.report.statement import Plan
from planner.service.http import dependencies
from planner.service.logs import JsonLines
from planner.settings import Settings

PASSWORD = "a-password-of-this-test"
JOB = "/v1/jobs/slurm/1"


def test_a_token_is_compared_with_all_that_are_known_by_hashes_and_in_constant_time(
    client: TestClient, stored: Plan, tokens: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return real(one, other)

    real = hmac.compare_digest
    monkeypatch.setattr(dependencies.hmac, "compare_digest", compare)
    hashes = [hashlib.sha256(token.encode()).hexdigest() for token in tokens]
    for token, status in ((tokens[0], 200), (tokens[1], 200), ("wrong", 401)):
        compared.clear()
        answer = client.put(JOB, json={"plan_id": stored.plan_id}, headers={"Authorization": f"Bearer {token}"})

        assert answer.status_code == status
        assert compared == [(hashlib.sha256(token.encode()).hexdigest(), each) for each in hashes]


def test_nothing_that_is_answered_measured_or_logged_has_a_token_or_its_hash(
    client: TestClient, stored: Plan, tokens: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "planner.service")
    right, wrong = ({"Authorization": f"Bearer {token}"} for token in (tokens[0], f"{tokens[0]}-wrong"))
    answers = [
        client.put(JOB, json={"plan_id": stored.plan_id}, headers=right),
        client.put(JOB, json={"plan_id": stored.plan_id}, headers=wrong),
        client.post(f"/v1/plans?token={tokens[0]}", content=b"{", headers={**right, "Content-Type": "text/plain"}),
        *(
            client.get(path, headers=right)
            for path in ("/metrics", "/readyz", "/openapi.json", "/docs", JOB, "/nowhere")
        ),
    ]
    lines = [JsonLines().format(each) for each in caplog.records if each.name.startswith("planner")]
    told = "\n".join([*(answer.text + str(answer.headers) for answer in answers), *lines])

    assert [answer.status_code for answer in answers] == [200, 401, 415, 200, 200, 200, 200, 200, 404]
    assert len(lines) >= len(answers)  # another service of this process may log as well
    for token in tokens:
        assert token not in told
        assert hashlib.sha256(token.encode()).hexdigest() not in told


def test_settings_that_are_printed_show_neither_the_password_nor_the_hash() -> None:
    token = "0" * 64
    settings = Settings.read({"database": f"postgresql://planner:{PASSWORD}@db/planner", "token_sha256": token})

    assert settings.token_sha256 == token
    assert PASSWORD in settings.database
    assert PASSWORD not in repr(settings)
    assert token not in repr(settings)


def test_a_token_in_the_place_of_its_hash_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingError) as refused:
        Settings.read({"token_sha256": PASSWORD})

    assert PASSWORD not in str(refused.value)
