"""A history in which every metric has something to tell: plans, a job and its ranks, checks, validations, counts."""

from __future__ import annotations

from datetime import timedelta

from planner.allocator.host.statement import HostPeak, HostStatement, NodeStatement
from planner.events import Category, Phase
from planner.host_events import HostCategory
from planner.report.statement import (
    Holder,
    OutsideAllocator,
    Peak,
    PhaseStatement,
    Plan,
    Provenance,
    RankClassStatement,
    Verdict,
)
from planner.service.history.counters import Counters
from planner.service.history.job_table import JobChange, MeasuredRank, Outcome
from planner.service.history.records import Check, Validation, ValidationState
from planner.service.history.store import History
from planner.service.metrics import (
    JOBS_JOINED,
    JOBS_REFUSED,
    JOBS_TRACED,
    REQUEST_SECONDS,
    REQUESTS,
    TRACE_RETRIES,
    WORKERS_KILLED,
)
from planner.service.scheduling.worker_pool import publish_levels
from planner.truth.calibration import interval
from planner.truth.calibration.learning import learn
from planner.truth.calibration.observation import Observation
from planner.units import GIB, MIB


def make_plan(
    number: int = 1,
    *,
    classes: tuple[str, ...] = ("0-1", "2-3"),
    verdict: Verdict = Verdict.FITS,
    name: str = "llama",
    team: str = "nlp",
    queue: str = "q",
    gpu: str = "H100-SXM-80GB",
) -> Plan:
    """A plan whose first class has 40 GiB, and each further one a GiB less."""
    capacity = 80 * GIB if verdict is Verdict.FITS else 20 * GIB
    return Plan(
        plan_id=f"pl-{number:026d}",
        trace_id=f"{number:064x}",
        calibrated=False,
        gpu=gpu,
        nodes=1,
        gpus_per_node=8,
        job={"metadata": {"name": name, "team": team, "queue": queue}, "cluster": {"gpu": {"name": gpu}}},
        rank_classes=tuple(
            make_rank_class(ranks, (40 - place) * GIB + number, verdict, capacity)
            for place, ranks in enumerate(classes)
        ),
        host=_host(),
        provenance=Provenance(planner="0", torch="0", allocator_rules="0", catalog="0", calibration="none"),
    )


def _host() -> HostStatement:
    """Two nodes of 400 GiB, of which each is to take 300 GiB at least."""
    peak = HostPeak(phase=Phase.OPTIMIZER_STEP, iteration=1, bytes=300 * GIB)
    node = NodeStatement(nodes="0-1", ranks="0-3", peak=peak, parts={HostCategory.OTHER: 300 * GIB}, phases=(peak,))
    return HostStatement(capacity_bytes=400 * GIB, nodes=(node,), assumptions=())


def make_rank_class(ranks: str, device: int, verdict: Verdict, capacity: int) -> RankClassStatement:
    """A GiB lies outside of the allocator, and another one is reserved and not allocated."""
    reserved, representative = device - GIB, int(ranks.split("-")[0].split(",")[0])
    return RankClassStatement(
        representative=representative,
        ranks=ranks,
        coordinates={"dp_replicate": representative},
        peak=Peak(
            phase=Phase.BACKWARD, iteration=2, allocated_bytes=reserved - GIB, reserved_bytes=reserved,
            device_bytes=device, interval_bytes=(device - GIB, device + GIB),
        ),
        capacity_bytes=capacity,
        verdict=verdict,
        cache_releases=0,
        at_peak={Category.PARAMETER: reserved - 3 * GIB, Category.ACTIVATION: 2 * GIB},
        phases=(
            PhaseStatement(
                phase=Phase.BACKWARD, iteration=2, peak_allocated_bytes=reserved - GIB,
                peak_reserved_bytes=reserved, end_allocated_bytes=GIB,
            ),
        ),
        outside_allocator=OutsideAllocator(cuda_context_bytes=GIB),
        holders=(
            Holder(
                bytes=GIB, category=Category.ACTIVATION, module="model.layers.0.mlp", op="aten.mm",
                shape=(8192, 14336), dtype="bfloat16",
            ),
        ),
    )  # fmt: skip


def fill_history(history: History) -> Counters:
    """Two plans, one of them of a job that runs on four GPUs, and some of everything else."""
    now = history._now()
    running, asked = make_plan(1), make_plan(2, verdict=Verdict.EXCEEDS, team="vision", name='a "name"\nof two lines')
    for each in (running, asked):
        history.plans.put(each)
    measured = (
        MeasuredRank(rank=0, host="node-1", gpu_uuid="GPU-a", device_bytes=39 * GIB),
        MeasuredRank(rank=3, host="node-2", gpu_uuid="GPU-d", device_bytes=38 * GIB),
    )
    uuids = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
    change = JobChange(
        plan_id=running.plan_id, hosts=("node-1", "node-2"), gpu_uuids=uuids, started_at=now, measured=measured
    )
    history.jobs.bind("slurm", "4711", change)
    history.jobs.bind("slurm", "4700", JobChange(plan_id=running.plan_id, outcome=Outcome.OUT_OF_MEMORY))
    history.checks.put(Check(check_id="a", plan_id=running.plan_id, asked_at=now, verdict=Verdict.FITS))
    history.checks.put(Check(check_id="b", plan_id=asked.plan_id, asked_at=now, verdict=Verdict.EXCEEDS))
    history.checks.put(Check(check_id="c", plan_id=asked.plan_id, asked_at=now))
    for number, error in enumerate((4.0, 1.0, 1.5)):
        history.validations.put(
            Validation(
                validation_id=str(number), plan_id=running.plan_id, state=ValidationState.DONE,
                asked_at=now + timedelta(seconds=number), gpu="H100-SXM-80GB", torch="2.13.0", error_percent=error,
            )
        )  # fmt: skip
    history.validations.put(
        Validation(
            validation_id="f", plan_id=running.plan_id, state=ValidationState.FAILED, asked_at=now, problem="it hung"
        )
    )
    learnt = learn([*(_observation(case) for case in range(3)), _observation(9, measured_reserved_bytes=0)])
    history.calibrations.put(learnt.id, interval.to_json(learnt), measurements=3)
    counters = Counters(history.totals)
    count(counters)
    for name, times in ((JOBS_TRACED, 10), (TRACE_RETRIES, 1), (JOBS_JOINED, 5), (JOBS_REFUSED, 6)):
        counters.add(name, {}, times)
    for reason, times in (("time", 2), ("abandoned", 1)):
        counters.add(WORKERS_KILLED, {"reason": reason}, times)
    publish_levels(counters, {"workers": 4, "busy": 3, "waiting": 2})
    counters.flush()
    return counters


def count(counters: Counters) -> None:
    """One request, as the service's watch counts it."""
    counters.add(REQUESTS, {"route": "/v1/plans", "method": "POST", "status": "200"})
    counters.observe(REQUEST_SECONDS, {"route": "/v1/plans"}, 0.004)


def _observation(case: int, measured_reserved_bytes: int = 41 * GIB) -> Observation:
    return Observation(
        gpu="H100-SXM-80GB", torch="2.13.0", case=str(case), predicted_reserved_bytes=40 * GIB,
        measured_reserved_bytes=measured_reserved_bytes, predicted_context_bytes=600 * MIB,
        measured_context_bytes=630 * MIB, measured_device_bytes=measured_reserved_bytes + 630 * MIB,
        device_total_bytes=80 * GIB,
    )  # fmt: skip
