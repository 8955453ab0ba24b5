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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_truth.matrix import GROUP_SECONDS, Case, cases
from gpu_truth.results import FILE_BYTES, Results
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
        wanted = [case for case in wanted if case.is_on_paper]
    done = results.finished()
    left = [case for case in wanted if case.name not in done]
    tell(f"{len(wanted)} cases, {len(wanted) - len(left)} of them measured before")
    with tempfile.TemporaryDirectory(prefix="planner-gpu-truth-") as at_work:
        run = _Run(matrix, results, left, Path(at_work), tell)
        run.measure()
    run.tell_summary()
    return [*run.failed, *(case.name for case in run.waiting)]


def choose_next(waiting: Sequence[Case], running: Sequence[Case], slots: int, seconds: float) -> Case | None:
    """The most valuable case that can end within these seconds; None if all slots are taken, or none can.

    A case that wants the device for itself waits until the others have ended, and those that are worth less wait behind
    it; one that would not end in time holds up nobody.
    """
    if len(running) >= slots or any(case.alone for case in running):
        return None
    case = next((case for case in waiting if GROUP_SECONDS[case.group] <= seconds), None)
    return None if case is None or (case.alone and running) else case


class _Run:
    """One run of what is left."""

    def __init__(
        self, matrix: Matrix, results: Results, left: Sequence[Case], at_work: Path, tell: Callable[[str], None]
    ) -> None:
        self.waiting = list(left)
        self.failed: list[str] = []
        self._matrix, self._results, self._at_work, self._tell = matrix, results, at_work, tell
        self._ends = time.monotonic() + max(matrix.seconds - _PACKING_SECONDS, 0.0)
        self._measured = 0

    def measure(self) -> None:
        """Until nothing more can be begun."""
        slots = max(self._matrix.jobs, 1)
        with ThreadPoolExecutor(slots) as pool:
            begun: dict[Future[str], tuple[Case, float]] = {}
            while True:
                at_work = [case for case, _ in begun.values()]
                case = choose_next(self.waiting, at_work, slots, self._ends - time.monotonic())
                if case is not None:
                    self.waiting.remove(case)
                    begun[pool.submit(self._measure_one, case)] = case, time.monotonic()
                    continue
                if not begun:
                    return
                finished, _ = wait(begun, return_when=FIRST_COMPLETED)
                for future in finished:
                    case, since = begun.pop(future)
                    trouble = future.result()
                    self.failed += [case.name] if trouble else []
                    self._measured += not trouble
                    self._tell(f"{case.name}  {trouble or 'ok'} ({time.monotonic() - since:.0f} s)")

    def tell_summary(self) -> None:
        """What was measured; what failed, by name; how much comes back."""
        missing = [*self.failed, *(case.name for case in self.waiting)]
        self._tell(f"{self._measured} measured, {len(missing)} not: {_shorten(missing) or 'none'}")
        if self._results.dropped:
            self._tell(f"{self._results.dropped} lines were left out: the files are full")
        for path in sorted(self._results.folder.iterdir()):
            size = path.stat().st_size
            more = ", more than one file may have" if size > FILE_BYTES else ""
            self._tell(f"{path.name}: {size:,} bytes{more}")

    def _measure_one(self, case: Case) -> str:
        """One case in a process of its own; its lines are appended here. What went wrong, or nothing."""
        folder = self._at_work / case.name
        folder.mkdir()
        answer = folder / f"{case.name}.jsonl"
        is_planned = self._matrix.is_on_paper and case.job is not None  # as planner's own command plans it too
        asked: dict[str, Any] = {"name": case.name, "device": self._matrix.device, "small": self._matrix.small}
        asked |= {"out": str(answer if is_planned else folder), "alone": case.alone or self._matrix.jobs == 1}
        if measured := self._matrix.as_measured.get(case.name):
            asked |= {"job": dict(measured.job), "rank": measured.rank, "gpu": measured.device.name}
        elif is_planned and case.job is not None:
            asked |= {"job": bundle(case.job)}
        function = _STEP_ON_PAPER if is_planned else _OPERATORS_ON_PAPER if self._matrix.is_on_paper else _ON_DEVICE
        seconds = max(min(_MOST_SECONDS, self._ends - time.monotonic()), 1.0)
        limits = replace(UNLIMITED, seconds=seconds)
        trouble = _trouble(running.run(Task(function, asked), limits, environment=_environment(case)), seconds)
        lines = answer.read_text(encoding="utf-8") if answer.exists() else ""
        if trouble:
            lines += _failure_line(case, trouble)
        self._results.append(lines)
        self._results.keep_snapshots(folder)
        return trouble


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


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
