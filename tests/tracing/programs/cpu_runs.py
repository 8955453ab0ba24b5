"""Jobs run in processes of their own, on paper or for real, alone or as ranks that meet over gloo."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import recorded_cpu_runs
from cpu_runs_worker import MOST_SECONDS

from planner.events import Alloc, Category, Event, Phase, Role
from planner.host_events import HostEvent
from planner.truth.measuring.host_recorder import COLLECTIVES
from planner.truth.measuring.measurement_lines import MeasuredPhase, Measurement, most_by_category, phases_of
from planner.versions import torch_at_hand

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_WORKER = (sys.executable, str(_HERE / "cpu_runs_worker.py"))
EXACT = ("parameter", "gradient", "bucket", "optimizer_state")
_FEW_BYTES = 64


@dataclass(frozen=True)
class Run:
    """What one process found out about one job."""

    events: Sequence[Event]
    ddp: dict[str, Any]
    measurement: Measurement | None = None
    host: Sequence[HostEvent] = ()
    """On paper, what the rank holds on the host."""

    @property
    def peak(self) -> int:
        return max(each.peak.requested_bytes for each in phases_of(self.events))

    @property
    def phases(self) -> Sequence[MeasuredPhase]:
        """Without counters of steps and flags, some of which are on a GPU's host."""
        few = {each.block for each in self.events if isinstance(each, Alloc) and each.requested_bytes <= _FEW_BYTES}
        return phases_of(without(self.events, *few))

    @property
    def stays(self) -> list[tuple[Phase, int, int]]:
        """The phases, with the bytes that are alive at the end of each; what a forward keeps its kernels decide."""
        return [
            (each.phase, each.iteration, 0 if each.phase is Phase.FORWARD else each.end.requested_bytes)
            for each in self.phases
        ]

    @property
    def buffers(self) -> Counter[tuple[str, int]]:
        """How often a collective of each name took how many bytes."""
        sizes = {each.block: each.requested_bytes for each in self.events if isinstance(each, Alloc)}
        roles = (each for each in self.events if isinstance(each, Role))
        return Counter((each.name, sizes[each.block]) for each in roles if each.category is Category.COMMUNICATION)

    @property
    def categories(self) -> dict[str, int]:
        # Not the reducer's map of used parameters, of which a CPU has a second one on its host; buckets are larger.
        small = {each.block for each in self.events if isinstance(each, Alloc) and each.requested_bytes < 1024}
        maps = {each.block for each in self.events if isinstance(each, Role) and each.category is Category.BUCKET}
        found = most_by_category([each for each in self.events if getattr(each, "block", None) not in small & maps])
        return {name: found.get(name, 0) for name in EXACT}


class Both(dict[tuple[str, int], tuple[Run, Run]]):
    """By name and rank: on paper, for real. What ends in an error for real, with another torch than that of the
    recordings, has nothing to be compared with: whoever asks for it is skipped, with the error."""

    failed: dict[tuple[str, int], str]

    def __missing__(self, which: tuple[str, int]) -> tuple[Run, Run]:
        if which not in self.failed:
            raise KeyError(which)
        pytest.skip(f"torch {torch_at_hand()} does not run it on a CPU: {self.failed[which].splitlines()[-1]}")


def both_ways(folder: Path, worlds: Sequence[tuple[Sequence[Any], int]], name: str) -> Both:
    """By name and rank: on paper, for real; of each of these worlds (jobs, and the size) every rank.

    The real runs are those that were recorded under `name`, or made now (`recorded_cpu_runs`).
    """
    every_rank = [(job, rank) for jobs, world in worlds for job in jobs for rank in range(world)]
    paper = _begin_on_paper(folder / "paper", every_rank)
    answers = recorded_cpu_runs.read(name, worlds)
    failed: dict[tuple[str, int], str] = {}
    if answers is None:
        answers = for_real(folder, worlds)
        if not recorded_cpu_runs.MODE:
            failed = {which: answer["error"] for which, answer in answers.items() if "error" in answer}
        answers = without_errors(answers, failed)
        recorded_cpu_runs.write(name, worlds, answers)
    measured, traced = runs_of(answers), runs_of(without_errors(_answers([paper()]), failed))
    assert traced.keys() == measured.keys()
    both = Both({which: (traced[which], measured[which]) for which in measured})
    both.failed = failed
    return both


def for_real(folder: Path, worlds: Sequence[tuple[Sequence[Any], int]]) -> recorded_cpu_runs.Answers:
    """What every rank of these worlds finds out, run now."""
    path = folder / "real"
    jobs, answers = _asked(path, [(list(jobs), world) for jobs, world in worlds])
    process = subprocess.Popen(
        [*_WORKER, "worlds", jobs, answers],
        env=_environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the ranks that were forked from it
        raise
    assert process.returncode == 0, said
    return _answers(Path(f"{answers}.{world}.{rank}") for _, world in worlds for rank in range(world))


def _begin_on_paper(path: Path, asked: Sequence[Any]) -> Callable[[], Path]:
    """What is returned waits for the answers and says where they are."""
    server, (jobs, answers) = _paper_server(), _asked(path, list(asked))
    assert server.stdin is not None
    server.stdin.write(json.dumps([jobs, answers]) + "\n")
    server.stdin.flush()

    def finish() -> Path:
        assert server.stdout is not None
        # Another module's may come before, which an error kept from being read.
        replies = (line.rstrip().rpartition(" ") for line in server.stdout)
        ended = next((code for which, _, code in replies if which == answers), "its server")
        assert ended == "0", f"the process on paper ended with {ended}: see its standard error"
        return Path(answers)

    return finish


@cache
def _paper_server() -> subprocess.Popen[str]:
    """Of all modules of this process: what they need is imported once."""
    server = subprocess.Popen(
        [*_WORKER, "paper"], env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.kill)
    return server


def _asked(path: Path, asked: Sequence[Any]) -> tuple[str, str]:
    """Where the questions are, and where the answers will be."""
    jobs = path.with_suffix(".jobs")
    jobs.write_bytes(pickle.dumps(asked))
    return str(jobs), str(path.with_suffix(".answers"))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_ROOT), "KINETO_LOG_LEVEL": "99", "OMP_NUM_THREADS": "1"}


def _answers(paths: Iterable[Path]) -> recorded_cpu_runs.Answers:
    return {which: answer for path in paths for which, answer in pickle.loads(path.read_bytes()).items()}


def without_errors(
    answers: recorded_cpu_runs.Answers, failed: Mapping[tuple[str, int], str]
) -> recorded_cpu_runs.Answers:
    """Those that have not failed; AssertionError for an error of any of them."""
    kept = {which: answer for which, answer in answers.items() if which not in failed}
    errors = [answer["error"] for answer in kept.values() if "error" in answer]
    assert not errors, "\n".join(errors)
    return kept


def runs_of(answers: recorded_cpu_runs.Answers) -> dict[tuple[str, int], Run]:
    return {
        which: Run(
            without_libraries(each["events"]),
            each["ddp"],
            each.get("measurement"),
            each.get("host", ()),
        )
        for which, each in answers.items()
    }


def assert_exact(paper: Run, real: Run) -> None:
    """The real run can be believed: two of its runs agree, and what it did not free is what live tensors hold. On paper
    the phases come in its order and leave as much behind, and parameters, gradients, buckets and optimizer state take
    what they take.
    """
    assert real.measurement is not None
    assert real.measurement.truth is not None
    assert real.measurement.truth.believed, real.measurement.truth
    assert paper.stays == real.stays
    assert paper.categories == real.categories


def without(events: Sequence[Event], *dropped: int) -> list[Event]:
    """The events of a run in which these blocks are never born."""
    gone = set(dropped)
    return [each for each in events if getattr(each, "block", None) not in gone]


def without_libraries(events: Sequence[Event]) -> list[Event]:
    """Without blocks that gloo takes for itself, and no GPU's collective: a gather is done in a second copy of its
    result, a reduce-scatter in one of what it is given (torch 2.13, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).
    And without cuBLAS's workspaces, which no CPU has.
    """
    births = (each for each in events if isinstance(each, Alloc) and each.origin is not None)
    of_gloo = [each.block for each in births if each.origin and each.origin.op.startswith(COLLECTIVES)]
    workspaces = (each.block for each in events if isinstance(each, Role) and each.category is Category.WORKSPACE)
    return without(events, *of_gloo, *workspaces)
