"""Runs a launch line as it stands on this machine, and says what each of its ranks took."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from planner.errors import MeasureError
from planner.job.launching.launchers import take_variables
from planner.records import from_plain
from planner.truth.measuring import nvml
from planner.truth.measuring.measurement_lines import (
    DeviceFacts,
    MeasuredPhase,
    Measurement,
    OutOfMemory,
    Phases,
    Truth,
)

_KILLED = "it imported torch, and ended by a signal or os._exit, which leaves no time to write figures"
_WITHOUT_CUDA = "it ended without having used CUDA"
_NEVER_SEEN = (
    "no Python of it that imported torch was seen here: it did not come that far, runs on another machine, or was "
    "started without this environment (another PYTHONPATH, python -E or -I, env -i, a scheduler)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How ranks are told: `size` of them; `variable` has a process's rank where RANK is not set, and a world of one
    needs none. `rank` is the only one that is started here, if it is set."""

    size: int
    variable: str = ""
    rank: int | None = None

    def rank_of(self, process: Mapping[str, Any]) -> int | None:
        """None for a process that is not a rank, as the launcher's own."""
        variables = process["variables"]
        rank = variables.get("RANK") or variables.get(self.variable, "")
        if rank.isdecimal():
            return int(rank)
        return 0 if self.size == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProgram:
    """A launch line that ran: its ranks, those without figures among them, and what is kept of no file.

    `problems` are the parts of the PlannerError that ended a rank, by rank.
    """

    exit_code: int
    measurements: tuple[Measurement, ...]
    problems: Mapping[int, Mapping[str, str]]


def _measure_ranks(
    processes: Sequence[Mapping[str, Any]], world: World, about: Measurement
) -> Iterator[tuple[Measurement, Mapping[str, str]]]:
    """Each rank of the world by its number, and the problem that ended it."""
    by_rank: dict[int, list[Mapping[str, Any]]] = {
        rank: [] for rank in (range(world.size) if world.rank is None else [world.rank])
    }
    for process in processes:
        number = world.rank_of(process)
        if number is not None:
            by_rank.setdefault(number, []).append(process)
    for rank, of_rank in sorted(by_rank.items()):
        # What a rank starts itself (workers that compile or load) inherits its RANK, and is not the rank.
        ranks = {(process["host"], process["pid"]) for process in of_rank if "RANK" in process["variables"]}
        own = [process for process in of_rank if (process["host"], process["parent"]) not in ranks]
        with_figures = [process for process in own if process.get("devices")]
        ended = [process for process in own if process["has_ended"]]
        last: Mapping[str, Any] = ended[-1] if ended else {"ended_by": "", "problem": {}}
        if with_figures:
            measured = _fullest(about, with_figures)
        else:
            reason = _WITHOUT_CUDA if len(ended) == len(own) else _KILLED
            measured = replace(about, error=reason if own else _NEVER_SEEN, ended_by=last["ended_by"])
        yield replace(measured, rank=rank), last["problem"]


def _fullest(about: Measurement, processes: Sequence[Mapping[str, Any]]) -> Measurement:
    """The figures of the device of which a process took the most."""
    pairs = [(_phases(device["phases"]), device, process) for process in processes for device in process["devices"]]
    phases, device, process = max(pairs, key=lambda pair: max(phase.peak.reserved_bytes for phase in pair[0]))
    return replace(
        about,
        phases=phases,
        device=from_plain(DeviceFacts, device["facts"]),
        memory_stats=device["memory_stats"],
        processes=len(processes),
        devices=len(process["devices"]),
        categories=process.get("categories", {}),
        out_of_memory=from_plain(OutOfMemory | None, process["out_of_memory"]),  # type: ignore[arg-type]
        truth=from_plain(Truth | None, process.get("truth")),  # type: ignore[arg-type]
        **{name: process[name] for name in _OF_PROCESS},
    )


_OF_PROCESS = ("host", "ended_by", "snapshot", "software", "allocator_conf", "device_bytes_by")


def _phases(marked: Sequence[Mapping[str, Any]]) -> tuple[MeasuredPhase, ...]:
    phases = Phases()
    for written in marked:
        phase = from_plain(MeasuredPhase, written)
        phases.add(phase.phase, phase.iteration, phase.peak, phase.end, phase.device_bytes)
    return phases.all()


_HOOK = Path(__file__).parent / "rank_hook"
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def check_gpus() -> None:
    """Raises MeasureError on a machine without a GPU of NVIDIA's, as its driver says."""
    if nvml.device_count():
        return
    raise MeasureError(
        "this machine has no GPU that NVIDIA's driver knows (NVML), so nothing was started",
        allowed="a machine with at least one",
        remedy="planner run -- COMMAND puts the same command on paper; --device cpu starts it here, without figures",
        place="--device",
    )


def check_writable(output: Path, snapshots: Path | None = None) -> None:
    """Before hours of training, not after them; of `output` nothing is left behind. Raises MeasureError."""
    try:
        was_there = output.exists()
        with output.open("a", encoding="utf-8"):
            pass
        if not was_there:
            output.unlink()
        if snapshots is not None:
            snapshots.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeasureError(
            f"{error.filename} cannot be written: {error.strerror}",
            allowed="a file in a folder that is there and can be written to",
            remedy="--output FILE.jsonl",
            place="--output",
        ) from None


def measure_program(
    command: Sequence[str],
    world: World,
    beside: Path,
    *,
    environment: Mapping[str, str] = os.environ,
    snapshots: Path | None = None,
) -> EndedProgram:
    """Runs the command and waits for its end.

    What the ranks leave is kept in the folder `beside` until then, which all nodes of a job see. `snapshots`: a folder
    for the allocator's history of each rank. Raises MeasureError if the command cannot be started.
    """
    # Variables before the command, which a shell would have taken.
    variables, words = take_variables(command)
    folder = Path(tempfile.mkdtemp(prefix=".planner-measure-", dir=beside.absolute()))
    try:
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        code = _run(words, {**environment, **variables}, folder, with_snapshots=snapshots is not None)
        seconds = round(time.perf_counter() - began, 3)
        processes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
        about = Measurement(
            case="", command=tuple(command), device=DeviceFacts(kind="none"), software={}, date=date,
            world_size=world.size, peers="present" if world.size > 1 else "none", seconds=seconds, exit_code=code,
        )  # fmt: skip
        ranks = list(_measure_ranks(processes, world, about))
        measurements = tuple(
            rank if snapshots is None else _keep_snapshot(rank, folder, snapshots) for rank, _ in ranks
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    problems = {rank.rank: problem for rank, problem in ranks if problem}
    return EndedProgram(exit_code=code, measurements=measurements, problems=problems)


def _run(words: Sequence[str], environment: Mapping[str, str], folder: Path, *, with_snapshots: bool) -> int:
    """Its exit code, as a shell would say it. What it prints goes where it always does."""
    path = [str(_HOOK), *([environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else [])]
    hooked = {**environment, "PYTHONPATH": os.pathsep.join(path), "PLANNER_MEASURE_FOLDER": str(folder)}
    if with_snapshots:
        hooked["PLANNER_MEASURE_SNAPSHOTS"] = "1"
    try:
        child = subprocess.Popen(words, env=hooked)
    except OSError as error:
        raise MeasureError(
            f"{words[0][:100]!a} cannot be started: {error.strerror}",
            allowed="a command that this machine has",
            remedy="check its name, or write its path",
            place="--",
        ) from None
    with _signals_passed_on(child):
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _signals_passed_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """The command alone decides how it ends; an interrupt of the terminal reaches it anyway."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return
    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep_snapshot(rank: Measurement, folder: Path, snapshots: Path) -> Measurement:
    if not rank.snapshot:
        return rank
    name = f"rank-{rank.rank}.pickle"
    snapshots.mkdir(parents=True, exist_ok=True)
    shutil.move(folder / rank.snapshot, snapshots / name)
    return replace(rank, snapshot=name)
