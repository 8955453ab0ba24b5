"""Processes and threads that write the same at the same moment: one row, no error, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stored import get_traces, put_traces

from planner.report.statement import Plan, to_json
from planner.service.history.job_table import JobChange, MeasuredRank, Outcome
from planner.service.history.store import History, Retention
from planner.tracing.rank_trace import Trace

REPOSITORY = Path(__file__).parents[3]
WRITERS = 3


def test_processes_open_a_new_database_and_store_the_same_at_the_same_moment(
    shared_url: str, plan: Callable[..., Plan]
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("writer.py")), shared_url]
    start = str(time.time() + 1.5)
    writers = [
        subprocess.Popen(
            [*command, str(number), start], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
            env={"PYTHONPATH": str(REPOSITORY)},
        )
        for number in range(WRITERS)
    ]  # fmt: skip
    ends = [writer.communicate(json.dumps(to_json(plan())), timeout=600)[1] for writer in writers]

    assert ends == [""] * WRITERS
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    with History.open(shared_url) as history:
        assert [each.plan_id for each in history.plans.newest()] == [plan().plan_id]
        assert history.plans.document(plan().plan_id) == to_json(plan())
        assert len(history.plans.rank_classes(plan().plan_id)) == 2
        assert list(get_traces(history, plan().trace_id)) == [0, 1]
        assert [each.calibration_id for each in history.calibrations.newest()] == ["same"]
        (job,) = history.jobs.open()
        assert sorted(job.hosts) == [f"node-{number}" for number in range(WRITERS)]
        assert job.measured == tuple(MeasuredRank(rank=number, device_bytes=10) for number in range(WRITERS))


@pytest.mark.parametrize("url", ["sqlite file", "sqlite in memory", "postgresql"], indirect=True)
def test_threads_share_one_history(url: str, plan: Callable[..., Plan]) -> None:
    def work(history: History, number: int) -> int:
        history.plans.put(plan(number % 3))
        put_traces(history, "a" * 64, {0: Trace(events=())})
        change = JobChange(
            plan_id=plan(number % 3).plan_id, measured=(MeasuredRank(rank=number % 8, device_bytes=number),)
        )
        history.jobs.bind("ray", "shared", change)
        history.jobs.active_plans()
        return len(history.capacity())

    with History.open(url) as history, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: work(history, number), range(48)))

        assert {each.plan_id for each in history.plans.newest()} == {plan(number).plan_id for number in range(3)}
        (job,) = history.jobs.open()
        assert [each.device_bytes for each in job.measured] == list(range(40, 48))


def test_a_plan_to_which_a_job_is_bound_while_others_forget_is_there_or_was_never_bound(
    shared_url: str, plan: Callable[..., Plan]
) -> None:
    """Whoever comes first: no running job without its plan, and no error but that there is no such plan."""
    keep_nothing = Retention(plans=0)
    refusals = []
    with History.open(shared_url) as history, ThreadPoolExecutor(2) as threads:
        for number in range(15):
            history.plans.put(plan(number))
            bound = threads.submit(
                history.jobs.bind, "ray", str(number), JobChange(plan_id=plan(number).plan_id)
            )  # fmt: skip
            forgot = threads.submit(history.forget, keep_nothing)
            forgot.result()
            error = bound.exception()
            if error is not None:
                refusals.append(str(error))
            found = history.plans.get(plan(number).plan_id)
            assert (found is None) == (error is not None)
            assert (history.jobs.get("ray", str(number)) is None) == (error is not None)
            if error is None:
                history.jobs.bind("ray", str(number), JobChange(outcome=Outcome.FINISHED))
    assert all("there is no plan" in refusal for refusal in refusals)
