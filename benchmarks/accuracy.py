"""`make accuracy`: predicted against recorded, for every truth at hand, errors as they are.

Kinds of truth: programs recorded on other people's GPUs, published figures of sharded runs, and measurements of our own
on a GPU (tests/data/gpu), if any.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import published

import planner.paper  # noqa: F401  before torch
from planner.job.loading import load_bundle
from planner.planning.gpu_truth import gpu_of
from planner.planning.identity import installed_torch
from planner.planning.plan import plan_job
from planner.truth import plan_comparison
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import Measurement
from planner.versions import minor_of

_ROOT = Path(__file__).parents[1]
_TESTS = _ROOT / "tests"
sys.path[:0] = [str(_TESTS / folder) for folder in ("tracing/traces", "tracing/programs", "fakes")]
_GPU = _TESTS / "data" / "gpu"


@dataclass(frozen=True)
class Row:
    """One figure, twice, in bytes."""

    case: str
    what: str
    predicted: int
    recorded: int

    @property
    def error_percent(self) -> float:
        return abs(self.predicted - self.recorded) / self.recorded * 100


def main() -> int:
    _show("Programs recorded on GPUs (tests/data/recorded_programs.json)", list(recorded_programs()))
    _show("Published FSDP2 runs, eager (benchmarks/published.py, examples/published/)", list(published_runs()))
    _show(f"Our own measurements on GPUs ({_GPU.relative_to(_ROOT)})", list(gpu_measurements()))
    return 0


def recorded_programs() -> Iterator[Row]:
    import test_recorded_programs as programs

    for name, recorded in programs.RECORDED["programs"].items():
        allocated, reserved = programs.on_paper(name).peaks()
        yield Row(name, "allocated", allocated, recorded["peak_allocated_bytes"])
        yield Row(name, "reserved", reserved, recorded["peak_reserved_bytes"])


def published_runs() -> Iterator[Row]:
    for each in published.figures():
        yield Row(f"{each.row} {each.case}, {each.step} step", each.what, each.predicted, each.published)


def gpu_measurements() -> Iterator[Row]:
    """As plans for that GPU and torch say it, facts and calibration included; of another torch nothing is compared."""
    for measurement in (
        each for path in sorted(_GPU.glob("measurements*.jsonl")) for each in measurement_lines.read(path)
    ):
        if not measurement.job or measurement.error or measurement.out_of_memory:
            continue
        if minor_of(measurement.software.get("torch", "")) == installed_torch():
            yield from _beside(measurement)


def _beside(measurement: Measurement) -> Iterator[Row]:
    job = load_bundle(measurement.job)
    gpu = replace(job.cluster, gpu=gpu_of(measurement.device))
    found = plan_job(replace(job, cluster=gpu, software=replace(job.software, torch=installed_torch())))
    events = found.events_of(measurement.rank)
    for figure in plan_comparison.with_measurement(found.plan, measurement, events=events).peak:
        if figure.measured:
            yield Row(measurement.case, figure.name, figure.predicted, figure.measured)


def _show(title: str, rows: list[Row]) -> None:
    print(title)
    if not rows:
        print("  none at hand\n")
        return
    width = max(len(row.case) for row in rows)
    for row in rows:
        figures = f"{row.predicted:>16,}{row.recorded:>16,}{row.error_percent:>10.3f} %"
        print(f"  {row.case:<{width}}  {row.what:<10}{figures}")
    for what in dict.fromkeys(row.what for row in rows):
        print(f"  {_summary(what, (row.error_percent for row in rows if row.what == what))}")
    print()


def _summary(what: str, errors: Iterable[float]) -> str:
    found = sorted(errors)
    return f"{what}: median {statistics.median(found):.3f} %, worst {found[-1]:.3f} % of {len(found)}"


if __name__ == "__main__":
    sys.exit(main())
