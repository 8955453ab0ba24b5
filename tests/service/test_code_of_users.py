"""Code that a job brings is run only where the operator lets it, and each time."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from plan_makers import CODE, MOST_SECONDS, ServiceStack, StackRunner, on_stack, when
from starlette.testclient import TestClient
from stored import get_traces

from planner.errors import FactoryNotAllowedError, SettingError
from planner.planning.trace_source import TraceSource
from planner.searching.exact_plans import Group, Refused, plan_here
from planner.service.http.openapi import EXAMPLE_JOB
from planner.service.orders import code_isolation, refuse_code
from planner.settings import Settings
from planner.training.models import build as factory_models
from planner.truth.calibration.interval import Calibration

Asgi = Callable[..., TestClient]


@on_stack()
async def test_code_is_refused_unless_the_operator_allows_it(stack: ServiceStack) -> None:
    with pytest.raises(FactoryNotAllowedError, match="this service runs no code of its users"):
        await stack.plan_provider.plan(CODE)

    assert stack.pool.asked == []


def test_code_lies_where_the_operator_says(run_stack: StackRunner, tmp_path: Path) -> None:
    async def story(stack: ServiceStack) -> None:
        for path, allowed in ((tmp_path / "a" / "b", True), (tmp_path / "a" / ".." / "b", False), (Path("/"), False)):
            job = dataclasses.replace(CODE, model=dataclasses.replace(CODE.model, factory_path=str(path)))
            if allowed:
                assert (await stack.plan_provider.plan(job)).stored
                continue
            with pytest.raises(FactoryNotAllowedError, match="is not a folder in which this service looks for code"):
                await stack.plan_provider.plan(job)

    run_stack(story, factories="shop", factory_folder=str(tmp_path / "a"))


@on_stack(factories="shop")
async def test_code_is_run_each_time(stack: ServiceStack) -> None:
    first, second = await stack.plan_provider.plan(CODE), await stack.plan_provider.plan(CODE)

    assert (first.from_store, second.from_store, stack.pool.asked) == (False, False, ["plan", "plan"])
    assert stack.history.plans.text(first.plan_id) == second.text
    assert get_traces(stack.history, first.trace_id) == {}


@on_stack(factories="shop")
async def test_what_code_made_for_a_check_that_went_is_told_once(stack: ServiceStack) -> None:
    go = asyncio.Event()
    stack.pool.does = lambda _: when(go)
    assert (await stack.plan_provider.plan(CODE, keep=True, seconds=0.02)).is_pending
    go.set()
    await stack.settled()
    go.clear()
    assert not (await stack.plan_provider.plan(CODE, keep=True, seconds=MOST_SECONDS)).is_pending
    assert stack.pool.asked == ["plan"]
    assert (await stack.plan_provider.plan(CODE, keep=True, seconds=0.02)).is_pending
    go.set()


@pytest.mark.parametrize(
    ("factory", "taken"),
    [("shop:model", True), ("shop.nets:build", True), ("shopping:model", False), ("timeit:timeit", False)],
)
def test_code_is_taken_by_the_names_of_its_modules(factory: str, taken: bool) -> None:
    job = dataclasses.replace(CODE, model=dataclasses.replace(CODE.model, factory=factory))
    settings = Settings(factories="shop, shop.*")
    if taken:
        refuse_code(job, settings)
        return
    with pytest.raises(FactoryNotAllowedError, match="is not among the factories that this service runs"):
        refuse_code(job, settings)


@pytest.mark.parametrize("pattern", ["*", "*.models", "?", ":build", "a b", "shop,*"])
def test_a_pattern_that_any_module_matches_is_refused(pattern: str) -> None:
    with pytest.raises(SettingError, match="is not a pattern of factories"):
        Settings.read({"factories": pattern})


def test_measuring_code_without_walls_needs_a_token_of_its_own() -> None:
    with pytest.raises(SettingError, match="unsandboxed measuring of users' code needs a token"):
        Settings.read({"measure_factories_without_walls": "yes"})


def test_a_validation_of_code_follows_the_rule_of_plans_and_needs_its_own_token(asgi: Asgi, tmp_path: Path) -> None:
    token = {"Authorization": "Bearer may run code"}
    client = asgi(factories="shop", code_token_sha256=hashlib.sha256(b"may run code").hexdigest())

    def answers(model: dict[str, Any], headers: Mapping[str, str]) -> int:
        job = {**EXAMPLE_JOB, "model": model}
        return int(client.post("/v1/validations", json={"job": job}, headers=headers).status_code)

    assert answers({"factory": "timeit:timeit"}, token) == 403
    assert answers({"factory": "shop:model", "factory_path": str(tmp_path)}, token) == 403
    assert answers({"factory": "shop:model"}, {}) == 401
    assert answers({"factory": "shop:model"}, token) == 501  # taken; here is nobody who measures
    assert answers(EXAMPLE_JOB["model"], {}) == 501


@pytest.mark.parametrize("patterns", [(), ("shop",)], ids=["none", "another"])
@pytest.mark.parametrize("factory", ["os:getcwd", "shop.hidden:build"])
def test_whatever_named_a_factory_it_is_asked_for_where_it_would_be_called(
    factory: str, patterns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an axis of a search names one, past the check of the job that came in."""
    isolation = code_isolation(Settings(factories=",".join(patterns), factories_as_root=True))
    job = dataclasses.replace(CODE, model=dataclasses.replace(CODE.model, factory=factory))

    (found,) = plan_here(Group((job,), Calibration.none(), TraceSource(isolation)))
    assert isinstance(found, Refused)
    monkeypatch.setattr(factory_models, "_rules", isolation.code)
    with pytest.raises(FactoryNotAllowedError) as caught:
        factory_models.from_factory(factory, {})

    assert found.reason == caught.value.problem


def test_a_folder_that_a_search_names_is_asked_for_there_too(tmp_path: Path) -> None:
    isolation = code_isolation(Settings(factories="shop", factory_folder=str(tmp_path / "a"), factories_as_root=True))
    model = dataclasses.replace(CODE.model, factory="shop:model", factory_path=str(tmp_path))

    (found,) = plan_here(Group((dataclasses.replace(CODE, model=model),), Calibration.none(), TraceSource(isolation)))

    assert isinstance(found, Refused)
    assert "is not a folder in which this service looks for code" in found.reason
