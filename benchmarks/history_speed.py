"""How long a history of ten thousand plans takes to answer, in SQLite unless a URL is given.

Run: python benchmarks/history_speed.py [URL of an empty database]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from planner.events import Category, Phase
from planner.history.job_values import JobChange, MeasuredRank
from planner.history.store import History
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
from planner.units import GIB

PLANS = 10_000
RUNNING = 2_000
"""Jobs that have not ended, each with a plan of its own and two ranks that told their peaks."""
HOLDERS = 100


def plan(number: int) -> Plan:
    """A plan of two rank classes with as many holders as a real one has."""
    return Plan(
        plan_id=f"pl-{number:026d}",
        trace_id=f"{number:064x}",
        calibrated=False,
        job={
            "metadata": {"name": f"run-{number}", "team": f"team-{number % 40}", "queue": f"queue-{number % 5}"},
            "cluster": {"gpu": {"name": ("H100-SXM-80GB", "A100-SXM-40GB", "B200-180GB")[number % 3]}},
        },
        rank_classes=(_rank_class("0", 0, number), _rank_class("1-63", 1, number)),
        provenance=Provenance(planner="0", torch="0", allocator_rules="0", catalog="0", calibration="none"),
    )


def measure(url: str, plans: int = PLANS, repetitions: int = 9) -> dict[str, float]:
    """Median seconds of each question to a history of so many plans."""
    with History.open(url) as history:
        began = time.perf_counter()
        for number in range(plans):
            history.plans.put(plan(number))
        stored = (time.perf_counter() - began) / plans
        for number in range(min(plans, RUNNING)):
            measured = tuple(MeasuredRank(rank=rank, device_bytes=40 * GIB) for rank in (0, 5))
            history.jobs.bind("ray", str(number), JobChange(plan_id=plan(number).plan_id, measured=measured))
        questions: dict[str, Callable[[], object]] = {
            "list of 100 plans": lambda: history.plans.newest(100),
            "list of 100 plans of a team": lambda: history.plans.newest(100, team="team-7"),
            "capacity": history.capacity,
            "active plans, 50": history.active_plans,
            "a plan's JSON": lambda: history.plans.text(plan(plans // 2).plan_id),
            "a plan": lambda: history.plans.get(plan(plans // 2).plan_id),
        }
        return {"a plan stored": stored} | {name: _seconds(ask, repetitions) for name, ask in questions.items()}


def _seconds(ask: Callable[[], object], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
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
def _place(arguments: list[str]) -> Iterator[str]:
    if arguments:
        yield arguments[0]
        return
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/history.db"


def main() -> None:
    with _place(sys.argv[1:]) as url:
        for name, seconds in measure(url).items():
            print(f"  {name:<30} {1000 * seconds:8.2f} ms")


if __name__ == "__main__":
    main()
