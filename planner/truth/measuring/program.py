"""Runs a launch line as it stands on this machine's GPUs, and says what each of its ranks took."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from planner.errors import MeasureError
from planner.job.launching.launchers import take_variables
from planner.records import from_document, to_plain
from planner.truth.measuring import nvml
from planner.truth.measuring.measurement_lines import Levels

SCHEMA = "planner.measured-program/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRank:
    """One rank, on the device of which it took the most. Peaks are those of the whole process, resets or not."""

    rank: int
    host: str
    gpu: str
    uuid: str
    total_bytes: int
    peak: Levels
    end: Levels
    device_bytes_at_end: int = 0
    """NVML's figure of the process when it ended; 0 where the driver does not say."""
    cache_releases: int = 0
    resets: int = 0
    """How often the program has set its counters back."""
    processes: int = 1
    """How many processes of this rank took memory: restarts, or processes that the program starts itself. The
    figures are those of the one that took the most."""
    devices: int = 1
    """Of how many devices that process took memory."""
    ended_by: str = ""
    snapshot: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    allocator_conf: str = ""

    @property
    def outside_bytes(self) -> int:
        """Beside the allocator at the end; 0 where the driver does not say what the process holds."""
        return max(0, self.device_bytes_at_end - self.end.reserved_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWithoutFigures:
    """A rank of the launch line that left no figures, and what is known of why."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProgram:
    """A launch line that ran. `exit_code` is that of the command, 128 and the signal's number if a signal ended it."""

    command: tuple[str, ...]
    exit_code: int
    date: str
    seconds: float
    world_size: int
    ranks: tuple[MeasuredRank, ...] = ()
    without_figures: tuple[RankWithoutFigures, ...] = ()


def write(path: Path, program: MeasuredProgram) -> None:
    document = {"schema": SCHEMA, **to_plain(program)}
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> MeasureError:
    return MeasureError(
        f"{path} cannot be written: {error.strerror}",
        allowed="a file in a folder that is there and can be written to",
        remedy="--output FILE.json",
        place="--output",
    )


def from_json(document: Mapping[str, Any]) -> MeasuredProgram:
    """The program that :func:`write` wrote. Raises MeasureError if the document is none."""
    return from_document(
        MeasuredProgram, document, SCHEMA, "measured program", error=MeasureError, remedy="measure again"
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
    needs none."""

    size: int
    variable: str = ""

    def rank_of(self, process: Mapping[str, Any]) -> int | None:
        """None for a process that is not a rank, as the launcher's own."""
        variables = process["variables"]
        rank = variables.get("RANK") or variables.get(self.variable, "")
        if rank.isdecimal():
            return int(rank)
        return 0 if self.size == 1 else None


def _ranks_of(
    processes: Sequence[Mapping[str, Any]], world: World
) -> tuple[tuple[MeasuredRank, ...], tuple[RankWithoutFigures, ...]]:
    """The ranks with figures, and those of the world without, by their number."""
    measured: list[MeasuredRank] = []
    missing: list[RankWithoutFigures] = []
    by_rank: dict[int, list[Mapping[str, Any]]] = {rank: [] for rank in range(world.size)}
    for process in processes:
        number = world.rank_of(process)
        if number is not None:
            by_rank.setdefault(number, []).append(process)
    for rank, of_rank in sorted(by_rank.items()):
        # What a rank starts itself (workers that compile or load) inherits its RANK, and is not the rank.
        ranks = {(process["host"], process["pid"]) for process in of_rank if "RANK" in process["variables"]}
        own = [process for process in of_rank if (process["host"], process["parent"]) not in ranks]
        with_figures = [process for process in own if process.get("devices")]
        if with_figures:
            measured.append(_fullest(rank, with_figures))
            continue
        reason = _WITHOUT_CUDA if all(process["has_ended"] for process in own) else _KILLED
        missing.append(RankWithoutFigures(rank=rank, reason=reason if own else _NEVER_SEEN))
    return tuple(measured), tuple(missing)


def _fullest(rank: int, processes: Sequence[Mapping[str, Any]]) -> MeasuredRank:
    pairs = [(device, process) for process in processes for device in process["devices"]]
    device, process = max(pairs, key=lambda pair: pair[0]["peak"]["reserved_bytes"])
    of_device = {key: device[key] for key in ("uuid", "total_bytes", "device_bytes_at_end", "cache_releases")}
    of_process = {key: process[key] for key in ("host", "resets", "ended_by", "snapshot", "software", "allocator_conf")}
    return MeasuredRank(
        rank=rank,
        gpu=device["name"],
        peak=Levels(**device["peak"]),
        end=Levels(**device["end"]),
        processes=len(processes),
        devices=len(process["devices"]),
        **of_device,
        **of_process,
    )


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


def measure_program(
    command: Sequence[str], world: World, output: Path, *, snapshots: Path | None = None
) -> MeasuredProgram:
    """Runs the command with the environment of this process and waits for its end.

    What the ranks leave is kept beside `output` until then, where all nodes of a job see it. `snapshots`: a folder for
    the allocator's history of each rank. Raises MeasureError if the command cannot be started, or nothing be written.
    """
    # Before hours of training, not after them. Nothing is left behind.
    try:
        was_there = output.exists()
        with output.open("a", encoding="utf-8"):
            pass
        if not was_there:
            output.unlink()
        if snapshots is not None:
            snapshots.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(Path(error.filename), error) from None
    # Variables before the command, which a shell would have taken.
    variables, words = take_variables(command)
    environment = {**os.environ, **variables}
    folder = Path(tempfile.mkdtemp(prefix=".planner-measure-", dir=output.absolute().parent))
    try:
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        code = _run(words, environment, folder, with_snapshots=snapshots is not None)
        seconds = round(time.perf_counter() - began, 3)
        processes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
        ranks, missing = _ranks_of(processes, world)
        if snapshots is not None:
            ranks = tuple(_keep_snapshot(rank, folder, snapshots) for rank in ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return MeasuredProgram(
        command=tuple(command), exit_code=code, date=date, seconds=seconds, world_size=world.size,
        ranks=ranks, without_figures=missing,
    )  # fmt: skip


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

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep_snapshot(rank: MeasuredRank, folder: Path, snapshots: Path) -> MeasuredRank:
    if not rank.snapshot:
        return rank
    name = f"rank-{rank.rank}.pickle"
    shutil.move(folder / rank.snapshot, snapshots / name)
    return replace(rank, snapshot=name)
