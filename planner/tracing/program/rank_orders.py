"""What is asked of one rank's process, what it brings back, and how that is written and read."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from planner.errors import PlannerError, ProgramError
from planner.job.json_text import is_plain_text, read_json
from planner.tracing import rank_trace
from planner.tracing.program.assumptions import Assumption, Branch
from planner.tracing.program.launch_line import LaunchLine
from planner.tracing.program.training_steps import PeaksAt
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
class Announced:
    """What a stage of a pipeline has told the next one of its outputs; only processes of the program read it."""

    stage: int
    content: str


@dataclass(frozen=True, slots=True)
class BroadcastNumber:
    """Whole numbers that the rank `source` has broadcast over the group of these ranks: its `number`-th broadcast."""

    ranks: tuple[int, ...]
    source: int
    number: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrder:
    """One rank of a program. `steps` 0: until enough was seen (planner.tracing.program.stopping)."""

    line: LaunchLine
    rank: int
    gpu: Gpu
    cuda: str
    torch: str = ""
    """The version that the job runs with (`2.6`); empty: the one that is installed here."""
    target: str = ""
    """Whose kernels are chosen, if not the GPU's: `cpu`, to stand beside runs on a CPU."""
    steps: int = 0
    steps_at: tuple[int, ...] = ()
    """To which steps its loop counts instead (planner.tracing.program.training_steps)."""
    patience_seconds: float | None = None
    """How long it is watched when it is steady; None: as `planner.tracing.program.stopping` has it."""
    seconds: float = float("inf")
    """All the time that it has."""
    strict: bool = False
    writes: bool = False
    """Whether what the program writes stays; else it is gone with its process."""
    packages: tuple[str, ...] = ()
    """That the job has and that are not installed here (planner.tracing.program.packages)."""
    kernels: str = ""
    """A file that describes kernels of the user's own."""
    otherwise: str = ""
    """A line (`train.py:12`) at which truth values are answered the other way."""
    heard: tuple[Announced, ...] = ()
    """From ranks that ran before."""
    numbers: tuple[BroadcastNumber, ...] = ()
    """That ranks broadcast which ran before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """What one rank did."""

    rank: int
    trace: Trace
    ending: str
    """How the run ended, for people."""
    iterations: int
    is_whole: bool = False
    """Whether the program came to its own end."""
    infers: bool = False
    """Whether nothing was trained: iterations are forwards."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """`max_allocated_bytes` and `max_reserved_bytes` as the program's own counters say at its end, after `resets`."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Evaluations (`eval`), and how often it saved and loaded."""
    idle_optimizers: int = 0
    """That have not stepped twice."""
    schedules: tuple[str, ...] = ()
    """Sentences on where sizes depend on the step, of a program that was not run to its end."""
    steps_at: tuple[PeaksAt, ...] = ()
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
    outline: Mapping[str, Any] = field(default_factory=dict)
    """What a spec could say of it (planner.tracing.program.job_outline)."""
    libraries: tuple[str, ...] = ()
    """That it has imported, of those whose size is known."""
    seconds: float = 0.0
    announced: tuple[Announced, ...] = ()
    numbers: tuple[BroadcastNumber, ...] = ()
    highest_bytes: int = 0
    """The most that was held at one time, as it was asked for and as the paper GPU attests it; 0 of a run that nothing
    attests."""


ABOUT, TRACE, CRASH = "about", "trace", "crash"
"""Parts of the answer: the run without its trace, its trace, and an error of the program's own."""
_MOST_BYTES = 4 * MIB
"""Of a report; those of the largest programs have some hundred KiB."""
_MOST_TEXT = 64 * 1024
_MOST_LISTED = 10_000
_MOST_NUMBER = 2**62
_PLACE = "the program's answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An error that the program raised."""

    said: str
    """Its class and the beginning of its message."""
    text: str
    """Its traceback."""
    place: str = ""
    sought: tuple[str, ...] = ()
    """Packages that it looked for in vain."""
    no_room: bool = False
    """Whether what it wrote found no room."""


def forged_error(problem: str) -> ProgramError:
    """The refusal of an answer that planner's own side of the process cannot have written."""
    return ProgramError(
        f"the program wrote to planner's channel, or changed what planner watches it with: {problem}",
        allowed="a program that leaves planner's own modules, memory and descriptors alone",
        remedy="run it without what reaches into planner",
        place=_PLACE,
    )


def about_text(run: RankRun) -> bytes:
    """The report of a run: all but its trace."""
    found = {name: _plain(getattr(run, name)) for name in RankRun.__dataclass_fields__ if name != "trace"}
    return json.dumps(found).encode()


def crash_text(crash: Crash) -> bytes:
    """The part that says how a program crashed."""
    return json.dumps(asdict(crash)).encode()


def read_run(parts: Mapping[str, bytes], rank: int) -> RankRun:
    """The run of this rank. Raises ProgramError for parts that are no report and trace of it."""
    try:
        document = _document(parts[ABOUT])
        found = _read(RankRun, {**document, "trace": rank_trace.loads(parts[TRACE].decode())}, "")
    except (ValueError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise forged_error(str(error)[:300]) from None
    if found.rank != rank or not 0 < found.memory_fraction <= 1:
        raise forged_error("it is the report of another rank, or of a GPU that there is not")
    return found  # type: ignore[no-any-return]


def read_crash(content: bytes) -> Crash:
    """How the program crashed. Raises ProgramError for what is no report of that."""
    try:
        return _read(Crash, _document(content), "")  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        raise forged_error(str(error)[:300]) from None


def _document(content: bytes) -> Any:
    if len(content) > _MOST_BYTES:
        raise ValueError(f"a report of {len(content)} bytes")
    try:
        return read_json(content.decode(), _PLACE, constants=False)
    except PlannerError as error:
        raise ValueError(error.problem) from None


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _read(kind: Any, value: Any, name: str) -> Any:
    """The value as this type, by its annotation. Raises ValueError for any other."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _record(kind, value, name)
    if origin is tuple:
        if not isinstance(value, list) or len(value) > _MOST_LISTED:
            raise ValueError(f"{name} is no list of up to {_MOST_LISTED}")
        return tuple(_read(inner[0], each, name) for each in value)
    if origin is not None:  # a mapping
        if not isinstance(value, dict) or len(value) > _MOST_LISTED:
            raise ValueError(f"{name} is no object")
        return {_read(str, key, name): _read(inner[1], each, name) for key, each in value.items()}
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(_read(str, value, name))
    return _scalar(kind, value, name)


def _record(kind: Any, value: Any, name: str) -> Any:
    if isinstance(value, kind):
        return value
    fields = _fields_of(kind)
    if not isinstance(value, dict) or not value.keys() <= fields.keys():
        raise ValueError(f"{name or 'the report'} is no {kind.__name__}")
    try:
        return kind(**{key: _read(fields[key], each, key) for key, each in value.items()})
    except TypeError:
        raise ValueError(f"{name or 'the report'} is no whole {kind.__name__}") from None


@cache
def _fields_of(kind: Any) -> Mapping[str, Any]:
    return types.MappingProxyType(typing.get_type_hints(kind))


def _scalar(kind: type, value: Any, name: str) -> Any:
    least = -_MOST_NUMBER if name == "values" else 0  # what ranks tell each other may be negative
    if kind is float and type(value) in (int, float) and math.isfinite(value) and 0 <= value <= _MOST_NUMBER:
        return float(value)
    if kind is int and type(value) is int and least <= value <= _MOST_NUMBER:
        return value
    if kind is bool and type(value) is bool:
        return value
    if kind is str and type(value) is str and len(value) <= _MOST_TEXT and is_plain_text(value):
        return value
    raise ValueError(f"{name} is no {kind.__name__} within its limits")
