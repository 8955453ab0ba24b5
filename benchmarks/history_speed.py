"""How long a history of ten thousand plans takes to answer, in SQLite unless a URL is given.

Run: python benchmarks/history_speed.py [URL of an empty database]

SQLite works in this process: its figures are processor seconds, as those of the other benchmarks. PostgreSQL does not:
its figures are by the clock.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from sqlalchemy import insert

from planner.events import Category, Phase
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
from planner.service.history import schema
from planner.service.history.counters import Counters
from planner.service.history.job_table import JobChange, MeasuredRank
from planner.service.history.store import History
from planner.service.metrics import REQUEST_SECONDS, REQUESTS, exposition
from planner.units import GIB

PLANS = 10_000
ACTIVE = 50
"""Plans of which metrics tell every rank class; the newest ones have sixteen."""
CHECKS, VALIDATIONS = 100_000, 10_000
"""As many as the retention keeps."""
RUNNING = 2_000
"""Jobs that have not ended, each with a plan of its own and two ranks that told their peaks."""
HOLDERS = 100
METRICS = "/metrics"


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds of each question, and the size of what Prometheus is told."""

    seconds: dict[str, float]
    metrics_bytes: int


def plan(number: int) -> Plan:
    """A plan of two rank classes, or sixteen if metrics will tell it, with as many holders as a real one has."""
    ranks = ("0", "1-63") if number < PLANS - ACTIVE else tuple(str(rank) for rank in range(16))
    return Plan(
        plan_id=f"pl-{number:026d}",
        trace_id=f"{number:064x}",
        calibrated=False,
        gpu=("H100-SXM-80GB", "A100-SXM-40GB", "B200-180GB")[number % 3],
        nodes=1,
        gpus_per_node=8,
        job={"metadata": {"name": f"run-{number}", "team": f"team-{number % 40}", "queue": f"queue-{number % 5}"}},
        rank_classes=tuple(_rank_class(each, place, number) for place, each in enumerate(ranks)),
        provenance=Provenance(planner="0", torch="0", allocator_rules="0", catalog="0", calibration="none"),
    )


def measure(url: str, plans: int = PLANS, repetitions: int = 9) -> Measured:
    """Median seconds of each question to a history of so many plans, the last 2,000 of them with a job that runs."""
    clock = time.process_time if url.startswith("sqlite") else time.perf_counter
    with History.open(url) as history:
        began = clock()
        for number in range(plans):
            history.plans.put(plan(number))
        stored = (clock() - began) / plans
        for number in range(max(plans - RUNNING, 0), plans):
            measured = tuple(MeasuredRank(rank=rank, device_bytes=40 * GIB) for rank in (0, 5))
            uuids = tuple(f"GPU-00000000-0000-0000-{number:04d}-{rank:012d}" for rank in range(16))
            change = JobChange(plan_id=plan(number).plan_id, hosts=("node-1",), gpu_uuids=uuids, measured=measured)
            history.jobs.bind("ray", str(number), change)
        _fill_the_rest(history)
        questions: dict[str, Callable[[], object]] = {
            "list of 100 plans": lambda: history.plans.newest(100),
            "list of 100 plans of a team": lambda: history.plans.newest(100, team="team-7"),
            "capacity": history.capacity,
            "active plans, 50": history.jobs.active_plans,
            METRICS: lambda: exposition(history),
            "a plan's JSON": lambda: history.plans.text(plan(plans // 2).plan_id),
            "a plan": lambda: history.plans.get(plan(plans // 2).plan_id),
        }
        found = {"a plan stored": stored} | {name: _seconds(ask, repetitions, clock) for name, ask in questions.items()}
        return Measured(seconds=found, metrics_bytes=len(exposition(history)[0]))


def _fill_the_rest(history: History) -> None:
    """Checks, validations and counters, straight into their tables."""
    now = datetime.now(UTC)
    labels = {"plan_id": "", "team": "", "queue": "", "name": "", "system": "ray"}
    checks = [{**labels, "check_id": str(n), "asked_at": now, "verdict": "fits"} for n in range(CHECKS)]
    common = {"plan_id": "", "mode": "", "problem": "", "asked_at": now, "state": "done", "result": "x" * 2000}
    validations = [
        {**common, "validation_id": str(n), "gpu": f"gpu-{n % 8}", "torch": "2.13.0", "error_percent": n / 1000}
        for n in range(VALIDATIONS)
    ]
    with history._database.writing() as connection:
        connection.execute(insert(schema.CHECKS), checks)
        connection.execute(insert(schema.VALIDATIONS), validations)
    with Counters(history.totals) as counters:
        for route in range(15):
            for status in (200, 400, 404, 422):
                counters.add(REQUESTS, {"method": "POST", "route": f"/v1/route-{route}", "status": str(status)})
                counters.observe(REQUEST_SECONDS, {"route": f"/v1/route-{route}"}, status / 100)


def _seconds(ask: Callable[[], object], repetitions: int, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(repetitions):
        began = clock()
        ask()
        times.append(clock() - began)
    return median(times)


def _rank_class(ranks: str, representative: int, number: int) -> RankClassStatement:
    device = 40 * GIB + number
    return RankClassStatement(
        representative=representative,
        ranks=ranks,
        coordinates={"dp_replicate": representative},
        peak=Peak(
            phase=Phase.BACKWARD, iteration=2, allocated_bytes=device - 2 * GIB, reserved_bytes=device - GIB,
            device_bytes=device, interval_bytes=(device - GIB, device + GIB),
        ),
        capacity_bytes=80 * GIB,
        verdict=Verdict.FITS,
        cache_releases=0,
        at_peak=dict.fromkeys(Category, GIB),
        phases=tuple(
            PhaseStatement(
                phase=phase, iteration=iteration, peak_allocated_bytes=device, peak_reserved_bytes=device,
                end_allocated_bytes=device,
            )
            for iteration in (1, 2, 3) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
        ),
        outside_allocator=OutsideAllocator(cuda_context_bytes=GIB),
        holders=tuple(
            Holder(
                bytes=number + index, category=Category.ACTIVATION, module=f"model.layers.{index}.mlp.gate_proj",
                op="aten.mm", shape=(8192, 14336), dtype="bfloat16",
            )
            for index in range(HOLDERS)
        ),
    )  # fmt: skip


@contextmanager
def sqlite() -> Iterator[str]:
    """The URL of a new file, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/history.db"


@contextmanager
def postgresql() -> Iterator[str | None]:
    """The URL of a new database of the machine's own server, as the tests start it; None where there is none."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fakes"))
    try:
        import postgresql_server as server
    except ImportError:  # no driver
        yield None
        return
    binaries = server.binaries()
    if binaries is None:
        yield None
        return
    with server.running(binaries) as running:
        yield running.new_database()


def main() -> None:
    with nullcontext(sys.argv[1]) if sys.argv[1:] else sqlite() as url:
        measured = measure(url)
    for name, seconds in measured.seconds.items():
        print(f"  {name:<30} {1000 * seconds:8.2f} ms")
    print(f"  {'size of /metrics':<30} {measured.metrics_bytes:,} bytes")


if __name__ == "__main__":
    main()
