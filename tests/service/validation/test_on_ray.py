"""Validations on a real Ray: on CPUs over gloo, on pretended GPUs, and with workers that die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from planner.errors import MeasureError
from planner.job.schema import Gpu, Job
from planner.runtime.limits import Limits
from planner.service.validation import measuring_workers, validation_run
from planner.service.validation.measuring_workers import RefusedError, StoppedError, place_on_gpus
from planner.service.validation.requests import Request, build_request
from planner.service.validation.validation_run import Conditions
from planner.tracing.isolated import Isolation
from planner.units import GIB

pytestmark = pytest.mark.usefixtures("ray_session")
MakeJob = Callable[..., Job]


def conditions(seconds: float = 600.0, wait_seconds: float = 300.0, *, rehearsal: bool = False) -> Conditions:
    limits = Limits(seconds=seconds, memory_bytes=4 * GIB)
    return Conditions(
        isolation=Isolation(limits=limits), measuring=limits, wait_seconds=wait_seconds, rehearsal=rehearsal
    )


def on_cpu(job: Job, **body: Any) -> Request:
    return build_request({"device": "cpu", **body}, job)


def free_gpus() -> float:
    import ray

    return float(ray.available_resources().get("GPU", 0.0))


def when(found: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not found() and time.monotonic() < until:
        time.sleep(0.1)
    assert found()


_WORKER = "PYTEST_XDIST_WORKER" in os.environ


def measuring_processes() -> list[int]:
    """Programs that are measured. Those of other tests are not ours."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if b"PLANNER_MEASURE_JOB=" in environment and (b"PYTEST_XDIST_WORKER=" in environment) == _WORKER:
            found.append(int(process.name))
    return found


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_two_ranks_on_pretended_gpus_go_the_way_of_real_ones(job: MakeJob) -> None:
    """A placement group of two GPUs by their label, a process group among the two measuring processes."""
    during: list[float] = []
    request = build_request({"mode": "real_peers", "ranks": [0, 1]}, job(ranks=2))

    def validated() -> Any:
        return validation_run.validate(request, conditions(rehearsal=True), running=lambda: during.append(free_gpus()))

    result = validated()
    assert during == [0.0]
    assert result.document["mode"] == "real_peers"
    assert [(each["rank"], each["peers"]) for each in result.document["ranks"]] == [(0, "present"), (1, "present")]
    assert result.document["device"]["kind"] == "cpu"
    assert result.problem == ""
    assert result.error_percent is not None
    # On a busy machine collectives end late, and keep their tensors longer than in any other run.
    assert any(each.error_percent < 0.5 for each in chain([result], (validated() for _ in range(2))))
    when(lambda: free_gpus() == 2.0)


def test_a_gpu_that_the_cluster_lacks_is_refused_before_anything_is_traced(job: MakeJob) -> None:
    other = Gpu(name="B200-SXM-180GB", total_bytes=182631 * 2**20, arch="sm_100")
    with pytest.raises(RefusedError, match="what is there: 2 x H100"):
        validation_run.validate(build_request({}, job(gpu=other)), conditions(seconds=0))  # no time to trace it


def test_more_real_peers_than_gpus_are_refused_and_auto_goes_without_them(job: MakeJob) -> None:
    with pytest.raises(RefusedError, match="8 GPUs of the kind H100-SXM-80GB"):
        validation_run.choose_setting(build_request({"mode": "real_peers"}, job(ranks=8)), validation_run.nodes())
    auto = validation_run.choose_setting(build_request({}, job(ranks=8)), validation_run.nodes())
    assert (auto.mode.value, len(auto.place.bundles), auto.measured) == ("absent_peers", 1, (0,))


def test_gpus_that_others_hold_are_waited_for_and_not_for_ever(job: MakeJob) -> None:
    place = place_on_gpus(validation_run.nodes(), job().cluster.gpu, 2)
    never = threading.Event()
    with (
        measuring_workers.start_workers(place, wait_seconds=300, stop=never),
        pytest.raises(MeasureError, match=r"the cluster has what is wanted \(1 x GPU\), but for 1 s it was busy"),
        measuring_workers.start_workers(
            place_on_gpus(validation_run.nodes(), job().cluster.gpu, 1), wait_seconds=1, stop=never
        ),
    ):
        pass
    when(lambda: free_gpus() == 2.0)


def test_a_peer_that_dies_is_the_answer_and_the_others_are_not_waited_for(
    strange: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring_workers, "_PEERS_SECONDS", 1.0)
    with pytest.raises(MeasureError, match="rank 1: the measuring process was killed"):
        validation_run.validate(on_cpu(strange("die", ranks=2, rank=1), mode="real_peers"), conditions())
    when(lambda: measuring_processes() == [])


def test_a_worker_of_ray_that_is_killed_is_the_answer_and_its_process_ends(strange: MakeJob) -> None:
    def kill() -> None:
        when(lambda: measuring_processes() != [])
        time.sleep(0.5)
        os.kill(parent_of(parent_of(measuring_processes()[0])), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    with pytest.raises(MeasureError, match="the Ray worker that measured was lost"):
        validation_run.validate(on_cpu(strange("sleep")), conditions(), running=killer.start)
    killer.join()
    when(lambda: measuring_processes() == [])


def test_who_does_not_want_it_any_more_stops_it(strange: MakeJob) -> None:
    stop = threading.Event()

    def soon() -> None:
        when(lambda: measuring_processes() != [])
        stop.set()

    stopper = threading.Thread(target=soon)
    with pytest.raises(StoppedError):
        validation_run.validate(on_cpu(strange("sleep")), conditions(), running=stopper.start, stop=stop)
    stopper.join()
    when(lambda: measuring_processes() == [])
