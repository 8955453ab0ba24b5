"""A spec with `trainer` is measured by the file that is planned: what stays is equal to the byte."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from config_files import ZERO_2
from foreign_files import FSDP_2
from program_runs import forked_ranks, run_planner
from trainer_jobs import FLAGS, job_of, spec_of

from planner import cli
from planner.events import Phase
from planner.job.schema import Job
from planner.planning.plan import plan_job
from planner.truth.measuring.measure import make_setting, measure_once
from planner.truth.measuring.measurement_lines import Measurement
from planner.truth.plan_comparison import Figure, with_measurement

STEPS = 3
WEIGHTS = 404_160
"""Bytes of the small Llama in bfloat16, with its 64 bytes of frequencies, which have no gradient."""


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    with forked_ranks():
        yield


def measured_together(job: Job) -> list[Measurement]:
    """Every rank on this CPU, over gloo."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = f"127.0.0.1:{free.getsockname()[1]}"

    def measured(rank: int) -> Measurement:
        return measure_once(job, make_setting(job, "cpu", rank, meeting=meeting))

    with ThreadPoolExecutor(job.cluster.ranks) as ranks:
        return list(ranks.map(measured, range(job.cluster.ranks)))


def kept(**bytes_by_category: int) -> tuple[Figure, ...]:
    return tuple(Figure(name=name, predicted=size, measured=size) for name, size in bytes_by_category.items())


def test_the_commands_measure_it_and_set_it_beside_its_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec, lines = str(spec_of(tmp_path, 1, arguments={**FLAGS, "max_steps": 9})), str(tmp_path / "lines.jsonl")

    measure = run_planner(capfd, "measure", spec, "--device", "cpu", "--output", lines)
    compare = run_planner(capfd, "compare", spec, lines, "--format", "json")

    assert (measure.returncode, compare.returncode) == (0, 0)
    found = json.loads(compare.stdout)
    assert [(each["name"], each["predicted"], each["measured"]) for each in found["categories"]] == [
        ("parameter", WEIGHTS, WEIGHTS),
        ("gradient", WEIGHTS - 64, WEIGHTS - 64),
        ("optimizer_state", 2 * (WEIGHTS - 64), 2 * (WEIGHTS - 64)),
    ]
    assert found["notes"] == []
    assert not Path("trainer_output").exists()


def test_ranks_that_replicate_keep_what_is_planned_and_have_its_phases(tmp_path: Path) -> None:
    arguments = {**FLAGS, "gradient_accumulation_steps": 2, "ddp_find_unused_parameters": False}
    job = job_of(tmp_path, 2, arguments=arguments)
    planned = plan_job(job)

    ranks = measured_together(job)

    assert [
        with_measurement(planned.plan, one, events=planned.events_of(one.rank, on_cpu=True)).categories for one in ranks
    ] == [kept(parameter=WEIGHTS, gradient=WEIGHTS - 64, bucket=WEIGHTS - 64, optimizer_state=2 * (WEIGHTS - 64))] * 2
    in_an_iteration = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
    assert [(phase.phase, phase.iteration) for phase in ranks[0].phases] == [
        (Phase.LOAD, 0),
        *((phase, iteration) for iteration in range(1, STEPS + 1) for phase in in_an_iteration),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"arguments": {**FLAGS, "deepspeed": ZERO_2}},
        {"arguments": {**FLAGS, "fsdp": "full_shard"}},
        {"arguments": FLAGS, "accelerate": {"distributed_type": "FSDP", "fsdp_config": FSDP_2}},
    ],
    ids=["deepspeed", "fsdp", "accelerate"],
)
def test_what_a_cpu_does_not_share_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Mapping[str, Any]
) -> None:
    path = str(spec_of(tmp_path, 2, **said))

    for command in ("measure", "validate"):
        assert cli.main([command, path, "--device", "cpu"]) == 2
        assert capsys.readouterr().err.startswith(
            "trainer: the Trainer shares the model among its ranks on GPUs alone\n  allowed: "
        )
