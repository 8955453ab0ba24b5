"""`planner gpu-truth`: measures the whole matrix on one GPU, each case in a process of its own; resumable.

What tells most comes first. Into a folder go measurements.jsonl, a line a case, and snapshots.tar.xz with the most
useful histories. Cases that stand in the file already are skipped, unless they failed. It needs torch, PyYAML and
transformers, and no installation.
"""

from __future__ import annotations

import datetime
import io
import json
import lzma
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
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
_LOOSE = "snapshots"
PAPER = "paper"
_SNAPSHOT_BYTES = 6 * MIB
"""So much of them is kept, smallest first: they go into the repository."""
FILE_BYTES = 16 * MIB
"""A machine that is lent gives back files up to this size."""
_MOST_SECONDS, _GRACE_SECONDS = 240.0, 20.0
"""Of a case; and what one that was begun in the last moment may take longer than all."""
_ON_DEVICE = "planner.measuring.one_case:measure_one"
_ON_PAPER = "planner.measuring.on_paper:measure_one"


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

    @property
    def is_on_paper(self) -> bool:
        """`paper:sm_90`: the operator database on the paper GPU of that architecture."""
        return self.device.partition(":")[0] == PAPER


def measure_matrix(matrix: Matrix) -> list[str]:
    """Measures what is left of the matrix; the names of the cases that failed or were not reached in time."""
    matrix.out.mkdir(parents=True, exist_ok=True)
    wanted = [case for case in cases(small=matrix.small) if matrix.only in case.name]
    if matrix.is_on_paper:  # what a step takes there is what its plan says
        wanted = [case for case in wanted if case.share is not None]
    done = _read_finished_cases(matrix.out / MEASUREMENTS)
    left = [case for case in wanted if case.name not in done]
    print(f"{len(wanted)} cases, {len(wanted) - len(left)} of them measured before", file=sys.stderr)
    _unpack(matrix.out)
    failed = _measure_all(left, matrix)
    _pack(matrix.out)
    print(f"{len(left) - len(failed)} measured, {len(failed)} not: {', '.join(failed) or 'none'}", file=sys.stderr)
    for path in sorted(matrix.out.iterdir()):
        size = path.stat().st_size
        print(f"{path.name}: {size:,} bytes{', more than one file may have' * (size > FILE_BYTES)}", file=sys.stderr)
    return failed


def _read_finished_cases(path: Path) -> set[str]:
    if not path.exists():
        return set()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {str(each["case"]) for each in lines if not each["error"]}


def _groups(left: Sequence[Case], jobs: int) -> Iterator[tuple[str, int, list[Case]]]:
    """What is measured one group after the other: its name, how many processes at a time, its cases."""
    operators = [each for each in left if each.job is None]
    alone = [each for each in left if each.job is not None and each.alone]
    rest = [each for each in left if each.job is not None and not each.alone]
    groups = ("operators", jobs, operators), ("steps that want the GPU for themselves", 1, alone), ("steps", jobs, rest)
    yield from (each for each in groups if each[2])


def _measure_all(left: Sequence[Case], matrix: Matrix) -> list[str]:
    """Runs the cases, group by group. Names of those without an answer."""
    for name, together, group in _groups(left, matrix.jobs):
        print(f"{name}: {len(group)} cases, {together} at a time", file=sys.stderr)
    clock = _Clock(time.monotonic(), matrix.seconds)
    failed: list[str] = []
    for _, together, group in _groups(left, matrix.jobs):
        failed += _measure_group(group, matrix, together, clock)
    return failed


@dataclass(frozen=True, slots=True)
class _Clock:
    began: float
    seconds: float

    def gone(self) -> float:
        return time.monotonic() - self.began

    def left(self) -> float:
        return self.seconds - self.gone()


def _measure_group(group: Sequence[Case], matrix: Matrix, together: int, clock: _Clock) -> list[str]:
    waiting, failed = list(group), list[str]()
    with ThreadPoolExecutor(together) as pool:
        running: dict[Future[str], Case] = {}
        while waiting or running:
            while waiting and len(running) < together and clock.left() > 0:
                case = waiting.pop(0)
                limit = min(_MOST_SECONDS, clock.left() + _GRACE_SECONDS)
                running[pool.submit(_spawn, case, matrix, together == 1, limit)] = case
            if not running:
                break
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                case = running.pop(future)
                trouble = future.result()
                failed += [case.name] if trouble else []
                print(f"{clock.gone():6.0f} s  {case.name}  {trouble or 'ok'}", file=sys.stderr)
    return failed + [case.name for case in waiting]


def _spawn(case: Case, matrix: Matrix, alone: bool, seconds: float) -> str:
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
    limits = replace(UNLIMITED, seconds=seconds)
    ended = running.run(Task(_ON_PAPER if matrix.is_on_paper else _ON_DEVICE, asked), limits, environment=environment)
    trouble = _trouble(ended, seconds)
    lines = answer.read_text(encoding="utf-8") if answer.exists() else ""
    if trouble and not lines:
        lines = _write_failure(case, trouble)
    with (matrix.out / MEASUREMENTS).open("a", encoding="utf-8") as file:
        file.write(lines)
    answer.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()  # by the last one
    return trouble


def _trouble(ended: Answer, seconds: float) -> str:
    """What went wrong in the process of a case; empty if nothing did."""
    if ended.exceeded is not None:
        return f"not done after {seconds:.0f} s"
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


def _unpack(folder: Path) -> None:
    """The histories of an earlier run, so that the archive keeps them."""
    if not (folder / SNAPSHOTS).exists():
        return
    (folder / _LOOSE).mkdir(exist_ok=True)
    with tarfile.open(folder / SNAPSHOTS) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            if content is not None and Path(entry.name).name == entry.name:
                (folder / _LOOSE / f"{entry.name}.xz").write_bytes(lzma.compress(content.read()))


def _pack(folder: Path) -> None:
    """The histories as one archive, smallest first, until it is large enough."""
    found = sorted((folder / _LOOSE).glob("*.pickle.xz"), key=lambda path: path.stat().st_size)
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
    shutil.rmtree(folder / _LOOSE)
