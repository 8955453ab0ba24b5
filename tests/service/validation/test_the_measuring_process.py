"""Whatever happens in the process that measures is an answer, and nothing of it stays behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime_children import all_end
from stopped_clock import LimitClock

from planner.job.loading import bundle
from planner.job.schema import Allocator, Job
from planner.runtime import process_tree, running
from planner.runtime.limits import Limits
from planner.service.validation import measuring_process
from planner.truth.measuring import measurement_lines
from planner.units import GIB, MIB

MakeJob = Callable[..., Job]


def measured(job: Job, *, seconds: float = 600.0, memory_bytes: int = 4 * GIB) -> dict[str, Any]:
    request = {"job": bundle(job), "rank": 0, "world_size": 1, "device": "cpu", "code": {"patterns": None}}
    return measuring_process.run(request, Limits(seconds=seconds, memory_bytes=memory_bytes))


SESSION = 3
"""The field of /proc/PID/stat after the command's name."""


def alive_in_session(leader: int) -> list[int]:
    """Processes of this machine that are not gone, of the session of one of them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[SESSION]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_a_step_that_ends_well_is_a_measurement(job: MakeJob) -> None:
    found = measurement_lines.from_json(measured(job())["measurement"])
    assert (found.device.kind, found.peers, found.rank) == ("cpu", "none", 0)
    assert found.truth is not None
    assert found.truth.net_bytes == found.truth.live_bytes
    assert found.peak.requested_bytes > 10 * MIB


def test_a_step_that_ends_badly_is_a_problem(strange: MakeJob) -> None:
    """One that is killed is in test_on_ray.py."""
    problem = "the measuring process ended with exit code 7: what the program says before it leaves"
    assert measured(strange("leave")) == {"problem": problem}


def test_a_step_that_raises_is_a_problem_with_its_first_line(strange: MakeJob) -> None:
    found = measured(strange("fail"))
    assert (found["problem"], found["of_a_peer"]) == ("the measured step failed: RuntimeError: the data", False)


def test_what_a_program_answers_in_the_place_of_the_process_is_not_believed(strange: MakeJob) -> None:
    assert measured(strange("lie")) == {"problem": "the measuring process ended with exit code 0: without a word"}


def test_a_step_that_hangs_is_ended_with_all_that_it_started(strange: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    hung: list[int] = []
    before = process_tree.members(os.getpid())

    def is_hung() -> bool:
        for child in process_tree.members(os.getpid()) if not hung else ():
            if (
                child not in before and len(alive_in_session(child)) == 3
            ):  # with its program, and the one that this has started
                hung[:] = alive_in_session(child)
        return bool(hung)

    monkeypatch.setattr(running, "time", LimitClock(is_hung))
    assert measured(strange("hang"), seconds=300) == {
        "problem": "the measured step was not done within 300 s, and was ended"
    }
    assert len(hung) == 3
    assert all_end(hung)


def test_a_step_that_eats_the_hosts_memory_is_ended(strange: MakeJob) -> None:
    found = measured(strange("eat"), memory_bytes=700 * MIB)
    assert found == {
        "problem": "the measured step took more than 700.00 MiB of the host's memory, and was ended "
        "(PLANNER_VALIDATION_MEMORY_BYTES)"
    }


def test_it_has_the_allocators_settings_of_the_job_only(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    with_conf = replace(job(), allocator=Allocator(conf="expandable_segments:True"))

    confs = [measurement_lines.from_json(measured(each)["measurement"]).allocator_conf for each in (job(), with_conf)]

    assert confs == ["", "expandable_segments:True"]
