"""What is asked of one rank's process, and what it brings back, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.running.assumptions import Assumption
from planner.running.branches import Branch
from planner.running.launch_line import LaunchLine
from planner.running.steps_at import PeaksAt
from planner.tracing.traced import Trace


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
    """One rank of a program. `steps` 0: until enough was seen (planner.running.stopping)."""

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
    """To which steps its loop counts instead (planner.running.steps_at)."""
    patience_seconds: float | None = None
    """How long it is watched when it is steady; None: as `planner.running.stopping` has it."""
    seconds: float = float("inf")
    """All the time that it has."""
    strict: bool = False
    writes: bool = False
    """Whether what the program writes stays; else it is gone with its process."""
    packages: tuple[str, ...] = ()
    """That the job has and that are not installed here (planner.running.outside)."""
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
    """What a spec could say of it (planner.running.job_outline)."""
    libraries: tuple[str, ...] = ()
    """That it has imported, of those whose size is known."""
    seconds: float = 0.0
    announced: tuple[Announced, ...] = ()
    numbers: tuple[BroadcastNumber, ...] = ()
    highest_bytes: int = 0
    """The most that was held at one time, as it was asked for and as the paper GPU attests it; 0 of a run that nothing
    attests."""
