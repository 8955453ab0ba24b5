"""`planner gpu-truth`: measures the whole matrix on one GPU, each case in a process of its own; resumable.

Into a folder go measurements.jsonl, a line a case, and snapshots.tar.xz with the most useful histories. Cases that
stand in the file already are skipped, unless they failed. It needs torch, PyYAML and transformers, and no installation.
"""

from __future__ import annotations

import datetime
import io
import json
import lzma
import os
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from planner.measuring import store
from planner.measuring.matrix import Case, cases
from planner.measuring.measurement import DeviceFacts, Measurement
from planner.runtime import answers, running
from planner.runtime.limits import UNLIMITED
from planner.runtime.task import Answer, Task
from planner.units import MIB

MEASUREMENTS, SNAPSHOTS = "measurements.jsonl", "snapshots.tar.xz"
_SNAPSHOT_BYTES = 6 * MIB
"""So much of them is kept, smallest first: they go into the repository."""
_LIMITS = replace(UNLIMITED, seconds=240.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What is to be measured, where, and how: cases whose name has `only`, `jobs` at a time on `device`, none begun
    after `seconds`; `small` sizes are a rehearsal."""

    out: Path
    device: str
    small: bool
    jobs: int
    only: str
    seconds: float


def measure_matrix(matrix: Matrix) -> list[str]:
    """Measures what is left of the matrix; the names of the cases that failed or were not reached in time."""
    matrix.out.mkdir(parents=True, exist_ok=True)
    wanted = [case for case in cases(small=matrix.small) if matrix.only in case.name]
    done = _read_finished_cases(matrix.out / MEASUREMENTS)
    left = [case for case in wanted if case.name not in done]
    print(f"{len(wanted)} cases, {len(wanted) - len(left)} of them measured before", file=sys.stderr)
    failed = _measure_all(left, matrix)
    _pack(matrix.out)
    print(f"{len(left) - len(failed)} measured, {len(failed)} not: {', '.join(failed) or 'none'}", file=sys.stderr)
    return failed


def _read_finished_cases(path: Path) -> set[str]:
    if not path.exists():
        return set()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {str(each["case"]) for each in lines if not each["error"]}


def _measure_all(left: Sequence[Case], matrix: Matrix) -> list[str]:
    """Runs the cases: first those that want to be alone, then several at a time. Names of those without an answer."""
    began = time.monotonic()
    failed: list[str] = []
    for together, group in ((1, [c for c in left if c.alone]), (matrix.jobs, [c for c in left if not c.alone])):
        waiting = list(group)
        with ThreadPoolExecutor(together) as pool:
            running: dict[Future[str], Case] = {}
            while waiting or running:
                while waiting and len(running) < together and time.monotonic() - began < matrix.seconds:
                    case = waiting.pop(0)
                    running[pool.submit(_spawn, case, matrix, together == 1)] = case
                if not running:
                    break
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    case = running.pop(future)
                    trouble = future.result()
                    failed += [case.name] if trouble else []
                    print(f"{time.monotonic() - began:6.0f} s  {case.name}  {trouble or 'ok'}", file=sys.stderr)
        failed += [case.name for case in waiting]
    return failed


def _spawn(case: Case, matrix: Matrix, alone: bool) -> str:
    """One case in a process of its own; its lines are appended here. What went wrong, or nothing."""
    folder = matrix.out / "cases"
    folder.mkdir(exist_ok=True)
    answer = folder / f"{case.name}.jsonl"
    answer.unlink(missing_ok=True)
    asked = {"name": case.name, "out": str(matrix.out), "device": matrix.device, "small": matrix.small, "alone": alone}
    environment = {**os.environ, "KINETO_LOG_LEVEL": "99", "TOKENIZERS_PARALLELISM": "false"}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    if case.allocator_conf:
        environment["PYTORCH_ALLOC_CONF"] = case.allocator_conf
    ended = running.run(Task("planner.measuring.one_case:measure_one", asked), _LIMITS, environment=environment)
    trouble = _trouble(ended)
    lines = answer.read_text(encoding="utf-8") if answer.exists() else ""
    if trouble and not lines:
        lines = _write_failure(case, trouble)
    with (matrix.out / MEASUREMENTS).open("a", encoding="utf-8") as file:
        file.write(lines)
    return trouble


def _trouble(ended: Answer) -> str:
    """What went wrong in the process of a case; empty if nothing did."""
    if ended.exceeded is not None:
        return f"not done after {_LIMITS.seconds:g} s"
    error = answers.error_of(ended)
    if error is not None:
        return error.problem[:500]
    return answers.fault_line(ended) or (answers.ending(ended) if ended.exit_code else "")


def _write_failure(case: Case, trouble: str) -> str:
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    nothing = Measurement(
        case=case.name, job={}, device=DeviceFacts(kind="none"), software={}, date=date, error=trouble
    )
    return store.line(nothing) + "\n"


def _pack(folder: Path) -> None:
    """The histories as one archive, smallest first, until it is large enough."""
    found = sorted((folder / "snapshots").glob("*.pickle.xz"), key=lambda path: path.stat().st_size)
    if not found:
        return
    total = 0
    with tarfile.open(folder / SNAPSHOTS, "w:xz") as archive:
        for path in found:
            total += path.stat().st_size
            if total > _SNAPSHOT_BYTES:
                break
            content = lzma.decompress(path.read_bytes())
            entry = tarfile.TarInfo(path.name.removesuffix(".xz"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
