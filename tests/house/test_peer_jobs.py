"""The jobs on which the bench sets planner beside other tools, and what it makes of their answers."""

from __future__ import annotations

from pathlib import Path

import peer_jobs
import peers
import pytest
import yaml
from peer_jobs import Measured, PeerJob
from peers import Estimate

from planner.job.loading import load_job

JOBS = {job.name: job for job in peer_jobs.read()}


def job_of(name: str, measured_bytes: int) -> PeerJob:
    measured = Measured(figure="reserved", bytes=measured_bytes)
    return PeerJob(name=name, source="", measured=measured, tools=peer_jobs.TOOLS, others={})


def test_there_are_eight_and_every_tool_takes_one() -> None:
    assert len(JOBS) == 8
    assert {tool for job in JOBS.values() for tool in job.tools} == set(peer_jobs.TOOLS)


@pytest.mark.parametrize("job", [job for job in JOBS.values() if job.spec], ids=lambda job: job.name)
def test_its_spec_can_be_read(job: PeerJob) -> None:
    load_job(job.spec_path)


def test_each_is_said_in_one_way() -> None:
    assert [job.name for job in JOBS.values() if len([x for x in (job.spec, job.program, job.simumax) if x]) != 1] == []


def test_a_tool_that_is_left_out_without_a_reason_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = yaml.safe_load((peer_jobs.FOLDER / "jobs.yaml").read_text(encoding="utf-8"))
    del entries[0]["others"]["SimuMax"]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(entries), encoding="utf-8")
    monkeypatch.setattr(peer_jobs, "FOLDER", tmp_path)

    with pytest.raises(ValueError, match="24-layer LM"):
        peer_jobs.read()


def test_medians_are_of_absolute_errors_and_planner_s_are_of_the_same_jobs() -> None:
    first, second = job_of("first", 100), job_of("second", 200)
    found = [
        Estimate(first, "planner", 101, 4.0),
        Estimate(second, "planner", 190, 6.0),
        Estimate(first, "MemTracker", 70, 8.0),
        Estimate(second, "MemTracker", missing="no DeepSpeed engine"),
    ]

    assert list(peers.medians(found)) == [
        ("planner, median of 2", "3.0 % 5.0 s"),
        ("MemTracker, median of 1", "30.0 % 8.0 s"),
        ("  planner, the same 1", "1.0 % 4.0 s"),
    ]


def test_a_row_says_bytes_error_and_seconds_or_why_not() -> None:
    job = job_of("first", 2**30)

    assert Estimate(job, "planner", 2**29, 3.0).show() == "0.50 GiB -50.0 % 3.0 s"
    assert Estimate(job, "SimuMax", missing="Megatron-LM only").show() == "Megatron-LM only"
