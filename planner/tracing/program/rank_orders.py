"""What is asked of one rank's process, what it brings back, and how that is written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from planner.errors import PlannerError, ProgramError
from planner.events import Alloc, Free, FreeCompleted, Keep, Repeat, Role, Use
from planner.job.json_text import is_plain_text, read_json
from planner.job.launching.line import LaunchLine
from planner.job.size_limits import MOST_RANKS
from planner.records import from_plain, shape, to_plain
from planner.step_work import RepeatedLaunches
from planner.tracing import rank_trace
from planner.tracing.batch_sizes import VaryingSize
from planner.tracing.program.assumptions import Assumption, Branch
from planner.tracing.rank_trace import Trace
from planner.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The GPU that the program finds: its name as the driver says it, and what of it is not the program's."""

    product: str
    arch: str
    total_bytes: int
    outside_bytes: int = 0
    name: str = ""
    """Of the catalog, under which facts about it are known."""


@dataclass(frozen=True, slots=True)
class PeaksAt:
    """The highest bytes of one step and those that follow it at once. `iteration` is the first of them, `why` says what
    is largest there."""

    step: int
    allocated_bytes: int
    reserved_bytes: int
    iteration: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrder:
    """One rank of a program. `steps` 0: until enough was seen (planner.tracing.program.stopping)."""

    line: LaunchLine
    rank: int
    gpu: Gpu
    torch: str = ""
    """The version that the job runs with (`2.6`); empty: the one that is installed here."""
    target: str = ""
    """The GPU's architecture, of a slice with its multiprocessors (`sm_90/16`); empty: that of `gpu`."""
    steps: int = 0
    steps_at: tuple[int, ...] = ()
    """To which steps its loop counts instead (planner.tracing.program.training_steps)."""
    usual: int = 0
    """So many iterations before it counts to them."""
    until_read: bool = False
    """After `steps` it goes on until the program reads the statistics of its memory."""
    batches: int | None = 0
    """That are drawn ahead of each data loader; None: as many as an epoch has and time allows
    (planner.tracing.program.look_ahead). With 0 later steps are not looked for either."""
    patience_seconds: float | None = None
    """How long it is watched when it is steady; None: as `planner.tracing.program.stopping` has it."""
    seconds: float = float("inf")
    strict: bool = False
    is_of_a_spec: bool = False
    """Whether its batches are made up, so that of no value that follows from them anything is known; and what is
    compiled too often, or with strides of its own, is an error, where torch would run it eagerly."""
    micro_batches: int = 0
    """Forwards and backwards of an iteration that is an accumulation of more, of which two are like all that are left
    out."""
    micro_batches_left_out: int = 0
    folds_pipelines: bool = False
    """Whether of equal micro-batches of a pipeline few are run."""
    writes: bool = False
    """Whether what the program writes stays; else it is gone with its process."""
    packages: tuple[str, ...] = ()
    """That the job has and that are not installed here (planner.tracing.program.packages)."""
    kernels: str = ""
    """A file that describes kernels of the user's own."""
    otherwise: str = ""
    """A line (`train.py:12`) at which truth values are answered the other way."""
    heard: Mapping[str, str] = field(default_factory=dict)
    """What ranks that ran before have told (planner.tracing.program.value_answers)."""

    @property
    def ends_at_a_place(self) -> bool:
        """Whether a place of the program ends it, and not that it is steady."""
        return bool(self.steps_at) or self.until_read


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An error that the program raised."""

    said: str
    """Its class and the beginning of its message."""
    text: str
    place: str = ""
    sought: tuple[str, ...] = ()
    """Packages that it looked for in vain."""
    absent: str = ""
    """The repository or file that it looked for in vain."""
    no_room: bool = False
    """Whether what it wrote found no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """What one rank did."""

    rank: int
    nodes: int = 0
    processes_per_node: int = 0
    """Of the world in which it ran, which the program may have started itself; 0: as the launch line says."""
    devices: tuple[int, ...] = ()
    """GPUs of the node that the process has taken memory of, as `cuda:1` counts them, in the order of the first."""
    trace: Trace = field(default=Trace(()), metadata=shape(skip=True))
    """Of all its devices; :func:`divide_by_device` divides it."""
    ending: str
    iterations: int
    is_whole: bool = False
    failed: tuple[Crash, ...] = ()
    """The error that ended it, after it had trained."""
    said: str = ""
    """The last lines that a program which has `failed` printed."""
    infers: bool = False
    """Whether nothing was trained: iterations are forwards."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """`max_allocated_bytes` and `max_reserved_bytes` as the program's own counters say at its end, after `resets`."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Evaluations (`eval`), and how often it saved and loaded."""
    idle_optimizers: int = 0
    """That have not stepped twice."""
    schedules: tuple[str, ...] = ()
    """Sentences on where sizes depend on the step and may be larger at others, of a program that was not run to its
    end."""
    varying: VaryingSize | None = None
    """An input of its outermost forwards whose size varies."""
    steps_to_run: int = 0
    """How many iterations the whole program has, where it was run to its end or says it; 0: not known."""
    steps_at: tuple[PeaksAt, ...] = ()
    usual: int = 0
    """Iterations before the first of these."""
    assumptions: tuple[Assumption, ...] = ()
    communicators: tuple[int, ...] = ()
    """Sizes of the process groups over which tensors of the device travelled."""
    talkers: tuple[tuple[int, ...], ...] = ()
    """Ranks of each group over which single messages travelled: a pipeline's stages."""
    branches: tuple[Branch, ...] = ()
    """Lines at which an answer decides, in the order in which they were met."""
    allocator_conf: str = ""
    """Of the program itself, when it first took memory."""
    memory_fraction: float = 1.0
    seconds: float = 0.0
    told: Mapping[str, str] = field(default_factory=dict)
    """What this rank and those that ran before it tell others; only processes of the program read it."""


ABOUT, TRACE, CRASH = "about", "trace", "crash"
"""Parts of the answer: the run without its trace, its trace, and an error of the program's own."""
_MOST_BYTES = 4 * MIB
"""Of a report; those of the largest programs have some hundred KiB."""
_MOST_TEXT = 64 * 1024
_MOST_LISTED = 10_000
_MOST_NUMBER = 2**62
_MOST_REPEATED = 2**28
"""Events and launches of a trace beside those that are written: the recorder takes 56 bytes of each, 14 of the 16 GiB
that a program may have."""
_PLACE = "the program's answer"


class MoreGpusError(ProgramError):
    """The program starts more ranks on a node than it was shown GPUs, and nobody has said how many the node has."""

    def __init__(self, problem: str, gpus: int, **fields: str) -> None:
        super().__init__(problem, **fields)
        self.gpus = gpus


def malformed_error(problem: str) -> ProgramError:
    """The refusal of an answer that planner's own side of the process cannot have written."""
    return ProgramError(
        f"what the program's process answered is not a report of a run: {problem}",
        allowed="a program that leaves planner's own modules, memory and descriptors alone",
        remedy="run it without what reaches into planner",
        place=_PLACE,
    )


def write_report(report: RankRun | Crash) -> bytes:
    """A run without its trace, or how a program crashed, as a part of the answer."""
    return json.dumps(to_plain(report)).encode()


def read_run(parts: Mapping[str, bytes], rank: int) -> RankRun:
    """The run of this rank. Raises ProgramError for parts that are no report and trace of it."""
    try:
        run = _read(RankRun, parts[ABOUT])
        run = replace(run, trace=rank_trace.loads(parts[TRACE].decode()))
    except (ValueError, KeyError) as error:
        raise malformed_error(str(error)[:300]) from None
    if run.nodes * run.processes_per_node > MOST_RANKS or run.rank != rank or not 0 < run.memory_fraction <= 1:
        raise malformed_error("it is the report of another rank, or of a GPU that there is not")
    repeats: tuple[Repeat | RepeatedLaunches, ...] = (*run.trace.repeats, *run.trace.work.repeats)
    if sum((repeat.after - repeat.first) * repeat.times for repeat in repeats) > _MOST_REPEATED:
        raise malformed_error("its events repeat more often than a process has room to see")
    return run


def read_crash(content: bytes) -> Crash:
    """How the program crashed. Raises ProgramError for what is not a report of that."""
    try:
        return _read(Crash, content)
    except ValueError as error:
        raise malformed_error(str(error)[:300]) from None


_Report = TypeVar("_Report", RankRun, Crash)


def _read(kind: type[_Report], content: bytes) -> _Report:
    if len(content) > _MOST_BYTES:
        raise ValueError(f"a report of {len(content)} bytes")
    try:
        document = read_json(content.decode(), _PLACE, constants=False)
        _check_limits(document, "the report")
        return from_plain(kind, document)
    except PlannerError as error:
        raise ValueError(f"{error.place}: {error.problem}") from None
    except RecursionError:
        raise ValueError("the report is too deep") from None


def _check_limits(value: Any, name: str) -> None:
    is_within = True
    match value:
        case str():
            is_within = len(value) <= _MOST_TEXT and is_plain_text(value)
        case int() | float():
            is_within = 0 <= value <= _MOST_NUMBER
        case list() | dict():
            is_within = len(value) <= _MOST_LISTED
    if not is_within:
        raise ValueError(f"{name} is not {type(value).__name__} within its limits")
    if isinstance(value, dict):
        for key, member in value.items():
            _check_limits(key, name)
            _check_limits(member, key)
    elif isinstance(value, list):
        for member in value:
            _check_limits(member, name)


_STREAM_BITS = 24
"""Of a stream's number; above them is which device it is of (planner/paper/native/memory.cpp)."""
_BLOCK_EVENTS = (Alloc, Free, FreeCompleted, Keep, Role, Use)
"""All else is for every device: marks, waits, emptied caches, and launches, which one host makes."""


def divide_by_device(trace: Trace) -> list[Trace]:
    """What each device's allocator was told, in the order of their first blocks. With several of them nothing is
    folded, and the time of an iteration is left out: it is that of all devices together."""
    if not any(event.stream >> _STREAM_BITS for event in trace.events if isinstance(event, Alloc)):
        return [trace]
    events = list(trace.written_out())
    owner = {event.block: event.stream >> _STREAM_BITS for event in events if isinstance(event, Alloc)}
    work = replace(trace.work, launches=())
    return [
        replace(
            trace,
            events=tuple(
                event for event in events if not isinstance(event, _BLOCK_EVENTS) or owner[event.block] == number
            ),
            repeats=(),
            work=work,
        )
        for number in range(max(owner.values()) + 1)
    ]
