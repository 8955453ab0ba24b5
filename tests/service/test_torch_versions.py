"""A service plans each job with the torch of its release, or the nearest that its operator offers."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plan_makers import JOB, ServiceStack, StackRunner

from planner.errors import SettingError, TraceError
from planner.job.schema import Job, Software
from planner.planning import identity
from planner.report.statement import Plan, to_json
from planner.runtime.limits import Limits
from planner.service.errors import WorkerLostError
from planner.service.orders import PlanRefused, WorkerResult, build_order
from planner.service.scheduling import worker_pool
from planner.service.scheduling.tracing_worker import MOST_OTHERS, TorchServers, TracingWorker
from planner.service.scheduling.worker_pool import SLACK_SECONDS, START_SECONDS
from planner.service.torch_versions import ONLY_OWN, OfferedTorch, TorchVersions, read_torch_versions
from planner.tracing.isolated import Isolation
from planner.truth.calibration.interval import Calibration

OWN = identity.installed_torch()
NONE = Calibration.none()


def offered(*minors: str, python: str = "/nowhere/python") -> TorchVersions:
    return TorchVersions(
        tuple(
            OfferedTorch(each, python, {**identity.every_version(), "torch": f"{each}.0", "peft": f"peft of {each}"})
            for each in minors
        )
    )


def running(torch: str, job: Job = JOB) -> Job:
    return dataclasses.replace(job, software=Software(torch=torch))


def older(by: int) -> str:
    """A release before our own."""
    major, minor = OWN.split(".")
    return f"{major}.{int(minor) - by}"


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        (older(0), older(0)),
        (older(7), older(7)),
        (older(7) + ".1+cu124", older(7)),
        (older(6), older(7)),
        (older(5), older(4)),
        (older(4), older(4)),
        (older(2), older(0)),
        (older(3), older(4)),
        ("1.13", older(7)),
        ("3.0", older(0)),
        ("", older(0)),
    ],
)
def test_a_job_is_planned_with_its_release_or_the_nearest_and_of_two_with_the_newer(asked: str, chosen: str) -> None:
    assert offered(older(4), older(7)).nearest(asked).minor == chosen


def test_an_environment_of_our_own_release_that_is_offered_is_preferred() -> None:
    assert offered(OWN).nearest(OWN).python == "/nowhere/python"
    assert [each.minor for each in offered(OWN, older(4)).offered] == [older(4), OWN]


def test_what_is_planned_with_our_own_torch_is_named_as_if_nothing_else_was_offered() -> None:
    assert build_order(JOB, NONE, b"key", offered(older(4))) == build_order(JOB, NONE, b"key")


def test_no_two_torches_share_a_trace_or_a_plan() -> None:
    job = running(older(4))
    orders = [build_order(job, NONE, b"key", each) for each in (ONLY_OWN, offered(older(4)), offered(older(5)))]

    assert len({each.trace_id for each in orders}) == len({each.plan_id for each in orders}) == len(orders)


def test_a_failure_with_one_torch_is_none_with_another(run_stack: StackRunner) -> None:
    job = running(older(4))

    async def refuse(_: str) -> PlanRefused:
        return PlanRefused(TraceError("this torch cannot"))

    async def asked(stack: ServiceStack) -> list[str]:
        stack.pool.does = refuse
        with pytest.raises(TraceError):
            await stack.plan_provider.plan(job)
        await stack.settled()
        return stack.pool.asked

    async def fails(stack: ServiceStack) -> None:
        assert await asked(stack) == ["plan"]

    async def is_known(stack: ServiceStack) -> None:
        assert await asked(stack) == []

    run_stack(fails)
    run_stack(is_known)
    run_stack(fails, torches=offered(older(4)))


def test_work_goes_to_a_worker_that_has_loaded_its_torch_and_waits_longer_for_one_that_has_not(
    run_stack: StackRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = older(4), older(7)

    async def story(stack: ServiceStack) -> None:
        seen: list[tuple[int, float]] = []

        async def look(member: worker_pool._Member, method: str, seconds: float, *, most_seconds: float) -> None:  # noqa: ARG001
            seen.append((stack.pool.workers.index(member.worker), most_seconds))  # type: ignore[arg-type]

        monkeypatch.setattr(worker_pool._Member, "call", look)
        for torch in (first, second, second, first, ""):
            await stack.tracers._workers.call("plan", seconds=0.0, torch=torch)

        loading = SLACK_SECONDS + START_SECONDS
        one, other = seen[0][0], seen[1][0]
        assert one != other
        assert seen[:4] == [(one, loading), (other, loading), (other, SLACK_SECONDS), (one, SLACK_SECONDS)]
        assert seen[4][1] == SLACK_SECONDS

    run_stack(story, trace_workers=2)


class CountedServer:
    """In place of a fork server: knows whether it runs."""

    def __init__(self) -> None:
        self.runs = False

    def start(self) -> None:
        self.runs = True

    def close(self) -> None:
        self.runs = False


def test_a_worker_keeps_the_torches_that_were_asked_for_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, CountedServer] = {}

    def make(_: str, *, python: str = "own", root: Path = Path()) -> CountedServer:  # noqa: ARG001
        return made.setdefault(python, CountedServer())

    monkeypatch.setattr("planner.service.scheduling.tracing_worker.ForkServer", make)
    monkeypatch.setattr("planner.cuda_on_paper.start_server", make)
    releases = [older(by) for by in (4, 5, 6, 7)[: MOST_OTHERS + 1]]
    others = tuple(OfferedTorch(each, f"/{each}/python", {}) for each in releases)
    servers = TorchServers(TorchVersions(others))
    servers.start()

    for each in (*releases[:-1], releases[0], releases[-1]):
        servers.server_for(each)

    assert {python for python, server in made.items() if not server.runs} == {f"/{releases[1]}/python"}
    servers.close()
    assert not any(server.runs for server in made.values())


@pytest.fixture(scope="module")
def worker() -> Iterator[TracingWorker]:
    """With its own torch, beside one that does not start."""
    found = TracingWorker(Limits(), Isolation(), offered(older(4), python="/bin/false"))
    yield found
    found.close()


def test_a_torch_that_does_not_start_is_said_and_the_worker_stays(worker: TracingWorker) -> None:
    refused = worker.plan(1, build_order(running(older(4)), NONE, b"key"), 60.0)
    made = worker.plan(2, build_order(JOB, NONE, b"key"), 60.0)

    assert isinstance(refused, PlanRefused)
    assert isinstance(refused.error, WorkerLostError)
    assert refused.error.problem.startswith(f"nothing is planned with torch {older(4)} now: the fork server did not")
    assert "/bin/false" not in str(refused.error)  # a path of the operator's
    assert isinstance(made, WorkerResult)


def test_another_interpreter_gets_planner_and_makes_the_same_plan_under_the_same_name(worker: TracingWorker) -> None:
    here = read_torch_versions(f"{OWN}={sys.executable}")
    job = running(OWN)
    assert here.nearest(OWN).python == sys.executable
    another = TracingWorker(Limits(), Isolation(), here)

    brought, usual = (planned(each, build_order(job, NONE, b"key")) for each in (another, worker))

    assert without_seconds(brought) == without_seconds(usual)
    another.close()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("new", "'new' names no torch with its Python"),
        ("2.6=python3", "'2.6=python3' names no torch with its Python"),
        ("2.6=/nowhere/python", "cannot be started: No such file or directory"),
        ("2.6=/bin/false", "does not answer as a Python: it ended with 1"),
        (f"2.6={sys.executable}", f"{sys.executable} has torch {identity.software()['torch']}, not 2.6"),
        (f"{OWN}, {OWN}={sys.executable}", f"torch {OWN} is named twice"),
        ("2.6", "no environment of torch 2.6 was made for this user"),
    ],
)
def test_an_offer_that_cannot_be_had_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, said: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(SettingError) as error:
        read_torch_versions(setting)

    assert error.value.problem == said
    assert error.value.allowed
    assert error.value.place.startswith("PLANNER_TORCH_VERSIONS")


def test_a_cache_that_cannot_be_written_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/home/planner/.cache/planner/brought")

    monkeypatch.setattr("planner.service.torch_versions.bring_code", refuse)
    read_torch_versions.cache_clear()

    with pytest.raises(SettingError, match="Read-only file system"):
        read_torch_versions(f"{OWN}={sys.executable}")


def test_our_own_release_may_be_named_and_an_environment_that_was_made_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "planner" / "environments" / "torch-2.6"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/bin/false")
    (folder / "lib" / "python3.11" / "site-packages" / "torch-2.6.0.dist-info").mkdir(parents=True)

    assert read_torch_versions(OWN).nearest(OWN).python == ""
    with pytest.raises(SettingError) as error:  # found, and asked
        read_torch_versions(f"{OWN}, 2.6")
    assert error.value.place == f"PLANNER_TORCH_VERSIONS: {folder / 'bin' / 'python'}"


def planned(worker: TracingWorker, order: Any) -> Plan:
    found = worker.plan(1, order, 300.0)
    assert isinstance(found, WorkerResult), found
    assert found.plan is not None
    return found.plan


def without_seconds(plan: Plan) -> dict[str, Any]:
    return {key: value for key, value in to_json(plan).items() if key != "seconds"}
