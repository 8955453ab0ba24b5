"""Measures the whole matrix on one GPU, each case in a process of its own; resumable.

What tells most comes first, and nothing is begun that cannot end in time. Cases that have an answer are skipped. It
needs torch, PyYAML and transformers, and no installation. `planner gpu-truth` is the short way, with ten steps.
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_truth.matrix import FIRST_GUESSES, Case, cases
from gpu_truth.results import FILE_BYTES, Results, Timing
from gpu_truth.schedule import Costs, Schedule, Waiting, expect
from planner.job.loading import bundle
from planner.runtime import messages, running
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import Answer, Task
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measurement_lines import DeviceFacts, Measurement

PAPER = "paper"
_FOLDER = Path(__file__).parents[1]
"""Where this package lies: it is not installed, and its processes and the factories of its models have to be found."""
_MOST_SECONDS = 240.0
"""Of a case."""
_PACKING_SECONDS = 5.0
"""Kept free at the end, for what is written then."""
_SHOWN = 30
_ON_DEVICE = "gpu_truth.one_case:measure_one"
_OPERATORS_ON_PAPER = "gpu_truth.operators_on_paper:measure_one"
_STEP_ON_PAPER = "planner.planning.gpu_truth:plan_one"
_SIZE_ON_PAPER = "gpu_truth.filled_size:choose_one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What is to be measured, where, and how: cases whose name has `only`, `jobs` at a time on `device`, all of it
    within `seconds`; `small` sizes are a rehearsal. On paper, `as_measured` are the lines of a device whose jobs are
    taken as they were there."""

    out: Path
    device: str
    small: bool
    jobs: int
    only: str
    seconds: float
    as_measured: Mapping[str, Measurement] = field(default_factory=dict)

    @property
    def is_on_paper(self) -> bool:
        """`paper:sm_90`: the same on the paper GPU of that architecture."""
        return self.device.partition(":")[0] == PAPER


def measure_matrix(matrix: Matrix, say: Callable[[str], None] | None = None) -> list[str]:
    """Measures what is left of the matrix; the names of the cases that failed or were not reached in time."""
    tell = say or (lambda line: print(line, file=sys.stderr))
    results = Results(matrix.out)
    wanted = [case for case in cases(small=matrix.small) if matrix.only in case.name]
    if matrix.is_on_paper:
        wanted = [case for case in wanted if case.is_on_paper and _can_be_the_same(case, matrix)]
    done = results.finished()
    left = {case.name: case for case in wanted if case.name not in done}
    costs = _costs(results)
    tell(f"{len(wanted)} cases, {len(wanted) - len(left)} of them measured before")
    _tell_plan([_waiting(case) for case in left.values()], costs, matrix, tell)
    with tempfile.TemporaryDirectory(prefix="planner-gpu-truth-") as at_work:
        run = _Run(matrix, results, costs, left, Path(at_work), tell)
        run.measure()
    run.tell_summary()
    return [*run.failed, *(each.name for each in run.schedule.waiting)]


def _can_be_the_same(case: Case, matrix: Matrix) -> bool:
    """A step that fills a device is on paper what it was there."""
    return not case.fills or case.name in matrix.as_measured


def _costs(results: Results) -> Costs:
    costs = Costs(FIRST_GUESSES)
    for each in results.timings():
        costs.learn(each.case, each.group, each.seconds)
    return costs


def _waiting(case: Case) -> Waiting:
    return Waiting(name=case.name, group=case.group, alone=case.alone)


def _tell_plan(left: Sequence[Waiting], costs: Costs, matrix: Matrix, tell: Callable[[str], None]) -> None:
    """What is to come, before anything is begun."""
    began = 0.0
    for group in expect(left, costs, slots=matrix.jobs):
        late = "" if began + group.seconds <= matrix.seconds else ", not all of it in time"
        tell(f"  {group.name}: {group.cases} cases, from {began:.0f} s, {group.seconds:.0f} s expected{late}")
        began += group.seconds
    tell(f"  in all {began:.0f} s expected with {matrix.jobs} processes at a time; {matrix.seconds:.0f} s are given")


class _Run:
    """One run of what is left."""

    def __init__(
        self,
        matrix: Matrix,
        results: Results,
        costs: Costs,
        left: Mapping[str, Case],
        at_work: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._matrix, self._results, self._cases, self._at_work, self._tell = matrix, results, left, at_work, tell
        seconds = max(matrix.seconds - (_PACKING_SECONDS if matrix.seconds > 2 * _PACKING_SECONDS else 0.0), 0.0)
        self.schedule = Schedule(map(_waiting, left.values()), costs, slots=matrix.jobs, seconds=seconds)
        self._began = time.monotonic()
        self.failed: list[str] = []
        self._ended: Counter[str] = Counter()
        self._took: Counter[str] = Counter()

    def measure(self) -> None:
        """Until nothing more can be begun."""
        with ThreadPoolExecutor(max(self._matrix.jobs, 1)) as pool:
            at_work: dict[Future[str], tuple[Waiting, float]] = {}
            while True:
                while (waiting := self.schedule.begin(self._now())) is not None:
                    at_work[pool.submit(self._measure_one, self._cases[waiting.name])] = waiting, self._now()
                if not at_work:
                    return
                finished, _ = wait(at_work, return_when=FIRST_COMPLETED)
                for future in finished:
                    waiting, begun = at_work.pop(future)
                    self._end(waiting, self._now() - begun, future.result())

    def tell_summary(self) -> None:
        """What was measured, by group; what failed, by name; how much comes back."""
        left = Counter(each.group for each in self.schedule.waiting)
        failed = Counter(self._cases[name].group for name in self.failed)
        for group in FIRST_GUESSES:
            if self._ended[group] or left[group]:
                self._tell(
                    f"  {group}: {self._ended[group] - failed[group]} measured, {failed[group]} failed, "
                    f"{left[group]} not reached; {self._took[group]:.0f} s of processes"
                )
        measured = sum(self._ended.values()) - len(self.failed)
        missing = [*self.failed, *(each.name for each in self.schedule.waiting)]
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        self._tell(f"{measured} measured in {self._now():.0f} s, {len(missing)} not: {shown or 'none'}")
        refused = self._results.refused_operators()
        if refused:
            more = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
            self._tell(f"{len(refused)} operators were refused: {', '.join(refused[:_SHOWN])}{more}")
        if self._results.dropped:
            self._tell(f"{self._results.dropped} lines were left out: the files are full")
        for path in sorted(self._results.folder.iterdir()):
            size = path.stat().st_size
            more = ", more than one file may have" if size > FILE_BYTES else ""
            self._tell(f"{path.name}: {size:,} bytes{more}")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _end(self, waiting: Waiting, seconds: float, trouble: str) -> None:
        self.schedule.end(waiting, seconds)
        self._ended[waiting.group] += 1
        self._took[waiting.group] += round(seconds)
        self.failed += [waiting.name] if trouble else []
        self._tell(f"{self._now():6.0f} s  {waiting.name}  {trouble or 'ok'} ({seconds:.0f} s)")

    def _measure_one(self, case: Case) -> str:
        """One case in a process of its own; its lines are appended here. What went wrong, or nothing."""
        began = time.monotonic()
        folder = self._at_work / case.name
        folder.mkdir()
        answer = folder / f"{case.name}.jsonl"
        asked = {"name": case.name, "device": self._matrix.device, "small": self._matrix.small}
        asked |= {"out": str(answer if self._is_planned(case) else folder)}
        asked |= {"alone": case.alone or self._matrix.jobs == 1, **self._more(case)}
        seconds = max(min(_MOST_SECONDS, self.schedule.left(self._now())), 1.0)
        task, limits = Task(self._function(case), asked), replace(UNLIMITED, seconds=seconds)
        trouble = _trouble(running.run(task, limits, environment=_environment(case)), seconds)
        lines = answer.read_text(encoding="utf-8") if answer.exists() else ""
        if trouble:
            lines += _failure_line(case, trouble)
        timing = Timing(case.name, case.group, round(time.monotonic() - began, 1), trouble)
        self._results.append(lines, timing)
        self._results.keep_snapshots(folder)
        return trouble

    def _function(self, case: Case) -> str:
        if case.sizes:
            return _SIZE_ON_PAPER
        if not self._matrix.is_on_paper:
            return _ON_DEVICE
        return _STEP_ON_PAPER if self._is_planned(case) else _OPERATORS_ON_PAPER

    def _is_planned(self, case: Case) -> bool:
        """Whether it is a step on paper, which planner's own command plans too."""
        return self._matrix.is_on_paper and case.job is not None

    def _more(self, case: Case) -> dict[str, Any]:
        """What a case is told of others: the device it has to fill, the size that was found for it, its job."""
        if case.sizes:
            return {"of": case.sizes, "device_facts": self._device_facts()}
        if case.name in self._matrix.as_measured:
            measured = self._matrix.as_measured[case.name]
            return {"job": dict(measured.job), "rank": measured.rank, "gpu": measured.device.name}
        if self._is_planned(case) and case.job is not None:
            return {"job": bundle(case.job)}
        if not case.fills:
            return {}
        sizes = (each["operator"] for each in self._results.documents() if each["case"] == f"size-of-{case.name}")
        return {"micro_batch_size": next((each["micro_batch_size"] for each in sizes if each), 0)}

    def _device_facts(self) -> dict[str, Any]:
        found = (each["device"] for each in self._results.documents() if each["device"]["total_bytes"])
        return next(found, {})


def _environment(case: Case) -> dict[str, str]:
    path = os.pathsep.join([str(_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
    environment |= case.environment
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    if case.allocator_conf:
        environment["PYTORCH_ALLOC_CONF"] = case.allocator_conf
    return environment


def _trouble(ended: Answer, seconds: float) -> str:
    """What went wrong in the process of a case; empty if nothing did."""
    if ended.exceeded is not None:
        return f"not done after {seconds:.0f} s"
    error = messages.error_of(ended)
    if error is not None:
        return error.problem[:500]
    return messages.fault_line(ended) or (messages.ending(ended) if ended.exit_code else "")


def _failure_line(case: Case, trouble: str) -> str:
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    nothing = Measurement(
        case=case.name, job={}, device=DeviceFacts(kind="none"), software={}, date=date, error=trouble
    )
    return measurement_lines.line(nothing) + "\n"
