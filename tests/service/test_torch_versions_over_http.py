"""A service plans one spec under three releases of torch at once, says which, and of a fourth that it has not.

`PLANNER_TEST_TORCHES` names two environments of other torches, or more, as PLANNER_TORCH_VERSIONS does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from planner_serve import Service, serving

from planner.planning import identity
from planner.service.http.openapi import EXAMPLE_JOB
from planner.service.torch_versions import TorchVersions, read_torch_versions
from planner.upstream.torch_releases import largest_difference

TORCHES = os.environ.get("PLANNER_TEST_TORCHES", "")
SECONDS = 600.0
"""To load a torch that was not used for hours, on a machine that has other work."""
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(TORCHES.count("=") < 2, reason="PLANNER_TEST_TORCHES names no two environments of torch"),
]


@pytest.fixture(scope="module")
def torches() -> TorchVersions:
    return read_torch_versions(TORCHES)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    database = f"sqlite:///{tmp_path_factory.mktemp('store') / 'planner.sqlite'}"
    with serving(database, torch_versions=TORCHES, trace_workers=3, trace_seconds=SECONDS) as found:
        yield found


def test_one_spec_under_three_releases_at_once_is_three_plans_that_say_which(
    service: Service, torches: TorchVersions
) -> None:
    releases = [each.minor for each in torches.offered]

    first = planned_at_once(service, releases)
    again = planned_at_once(service, releases)

    assert [each["provenance"]["torch"] for each in first] == [each.versions["torch"] for each in torches.offered]
    assert [each["job"]["software"]["torch"] for each in first] == releases
    assert not any("another_torch" in each for each in first)
    assert len({each["plan_id"] for each in first}) == len({each["trace_id"] for each in first}) == len(releases)
    assert again == first  # from the store
    for each in first:
        assert service.get(f"/v1/plans/{each['plan_id']}").json() == each


def test_a_release_that_is_not_offered_is_planned_with_the_nearest_which_the_plan_says(
    service: Service, torches: TorchVersions
) -> None:
    offered = {each.minor for each in torches.offered}
    asked = next(f"2.{each}" for each in range(1, 40) if f"2.{each}" not in offered)
    nearest = torches.nearest(asked)

    (found,) = planned_at_once(service, [asked])

    assert found["provenance"]["torch"] == nearest.versions["torch"]
    said = found["another_torch"]
    assert (said["asked"], said["planned_with"]) == (asked, nearest.minor)
    assert said["difference"] == largest_difference(asked, nearest.minor)
    (own,) = planned_at_once(service, [nearest.minor])
    assert width(found) >= width(own) + 2 * said["difference"] * peak(found)["reserved_bytes"] * 0.99


def test_what_is_offered_can_be_asked(service: Service, torches: TorchVersions) -> None:
    listed = service.get("/v1/torches").json()["torches"]

    assert [(each["torch"], each["version"]) for each in listed] == [
        (each.minor, each.versions["torch"]) for each in torches.offered
    ]
    assert [each["torch"] for each in listed if each["own"]] == [identity.installed_torch()]


def planned_at_once(service: Service, releases: list[str]) -> list[dict[str, Any]]:
    def plan(release: str) -> dict[str, Any]:
        began = time.monotonic()
        job = {**EXAMPLE_JOB, "software": {"torch": release}}
        answer = httpx.post(f"{service.url}/v1/plans", json=job, timeout=SECONDS)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        print(f"torch {release} by {found['provenance']['torch']}: {time.monotonic() - began:.1f} s, {peak(found)}")
        return found

    with ThreadPoolExecutor(len(releases)) as pool:
        return list(pool.map(plan, releases))


def peak(plan: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = plan["rank_classes"][0]["peak"]
    return found


def width(plan: dict[str, Any]) -> int:
    low, high = peak(plan)["interval_bytes"]
    return int(high - low)
