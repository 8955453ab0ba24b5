"""Runs a launch line as it stands on this machine's GPUs, and says what each of its ranks took."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from planner.errors import MeasureError
from planner.measuring import nvml
from planner.measuring.measured_program import MeasuredProgram, MeasuredRank, unwritable
from planner.measuring.program_ranks import World, ranks_of, read_processes

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
    _check_writable(output, snapshots)
    assigned, words = _split_assignments(command)
    folder = Path(tempfile.mkdtemp(prefix=".planner-measure-", dir=output.absolute().parent))
    try:
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        code = _run(words, {**os.environ, **assigned}, folder, with_snapshots=snapshots is not None)
        seconds = round(time.perf_counter() - began, 3)
        ranks, missing = ranks_of(read_processes(folder), world)
        if snapshots is not None:
            ranks = tuple(_keep_snapshot(each, folder, snapshots) for each in ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return MeasuredProgram(
        command=tuple(command), exit_code=code, date=date, seconds=seconds, world_size=world.size,
        ranks=ranks, without_figures=missing,
    )  # fmt: skip


def _check_writable(output: Path, snapshots: Path | None) -> None:
    """Before hours of training, not after them. Nothing is left behind."""
    try:
        was_there = output.exists()
        with output.open("a", encoding="utf-8"):
            pass
        if not was_there:
            output.unlink()
        if snapshots is not None:
            snapshots.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(Path(error.filename), error) from None


def _split_assignments(command: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Variables before the command, which a shell would have taken."""
    assigned, words = {}, list(command)
    while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
        assigned[match[1]] = match[2]
        words = words[1:]
    return assigned, words


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
    return dataclasses.replace(rank, snapshot=name)
