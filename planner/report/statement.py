"""What is said of a job, a spec or a program: its plan (`planner.plan/2`).

All sizes are bytes. The JSON objects are public contracts, key order included; stored ones come back through
:func:`from_json`, equal to what they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.host.statement import HostStatement
from planner.events import Category, Phase
from planner.job.kinds import ANY, Kind
from planner.records import every, from_document, shape, to_plain
from planner.verdict import Verdict as Verdict
from planner.verdict import worst

USUAL_RISK = 0.05
PLAN_SCHEMA = "planner.plan/2"
PLAN_SCHEMAS = (PLAN_SCHEMA, "planner.plan/1", "planner.run/1")
"""The earlier ones were of specs and of programs: histories still have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMoment:
    """A moment at which jobs run out of memory.

    The three figures are peaks in bytes: `reserved_bytes` is the most until this moment, `device_bytes` is that and
    what lies outside the allocator. `iteration` is the optimizer step, counted from 1.
    """

    name: str
    phase: Phase
    iteration: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The highest point of a rank.

    `phase` and `iteration` are those of the allocated peak; `reserved_bytes` is its own maximum at its own
    moment; `device_bytes` is reserved plus outside; `interval_bytes` is where the device bytes lie with
    95 % probability.
    """

    phase: Phase
    iteration: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    interval_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStatement:
    """One phase of one iteration, its micro-batches taken together."""

    phase: Phase
    iteration: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideAllocator:
    """What the process holds on the device without the caching allocator."""

    cuda_context_bytes: int = 0
    nccl_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.cuda_context_bytes + self.nccl_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What keeps bytes alive at the peak. `bytes` are block bytes of all `count` blocks of this kind."""

    bytes: int
    category: Category
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long an iteration takes, by the model of planner.timing, and how long its parts are at work, beside each
    other or not. `interval_seconds` is where 95 % of published steps lie that the model was compared with."""

    seconds: float
    interval_seconds: tuple[float, float]
    computing_seconds: float
    communicating_seconds: float
    launching_seconds: float
    tokens_per_second: float = 0.0
    """Of all ranks, over the number of GPUs; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLead:
    """How far the host is ahead of the GPU while memory waits for it: what another stream uses, or a collective keeps,
    is not free before the GPU has passed it. Bytes are reserved peaks."""

    seconds: float
    least_bytes: int
    """Of a host that is never ahead."""
    host_interval_bytes: tuple[int, int]
    """Of hosts that take half as long for a launch as estimated, or twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRuns:
    """The reserved peaks of a compiled job whose kernels Inductor times, as in a new container, and of one that finds
    its cache filled. The larger of the two is stated and judged."""

    empty_cache_bytes: int
    filled_cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthStatement:
    """What each step keeps and never frees, and where that ends."""

    bytes_per_step: int
    full_in_step: int
    steps_to_run: int = 0
    """How many steps the job has; 0: not known."""

    @property
    def is_reached(self) -> bool:
        return self.full_in_step <= self.steps_to_run


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClassStatement:
    """What every rank of one class will hold. `headroom_bytes` is capacity less device bytes, negative if over."""

    representative: int
    ranks: str
    coordinates: Mapping[str, int]
    peak: Peak
    capacity_bytes: int = field(metadata=shape(then="headroom_bytes"))
    verdict: Verdict
    cache_releases: int
    at_peak: Mapping[Category, int] = field(metadata=shape(write=every(Category)))
    phases: tuple[PhaseStatement, ...]
    outside_allocator: OutsideAllocator
    holders: tuple[Holder, ...]
    kind: Kind = ANY
    """As far as recorded runs of it were off goes the interval."""
    risk: float = field(default=USUAL_RISK, metadata=shape(omit_default=True))
    """The share of jobs of its kind that may take more than the upper end of the interval."""
    moments: tuple[NamedMoment, ...] = field(default=(), metadata=shape(omit_default=True))
    """What it takes beyond its usual step; the peak is that of the worst of them."""
    growth: GrowthStatement | None = field(default=None, metadata=shape(omit_default=True))
    """Where its steps keep something; the peak is that of the steps that were seen."""
    judged_iterations: int = field(default=0, metadata=shape(omit_default=True))
    """Where larger sizes may come than those of these iterations; then it is tight at best."""
    step: StepTime | None = field(default=None, metadata=shape(omit_default=True))
    """None where the speeds of its GPU are not known, and for what was traced before steps were timed."""
    host_lead: HostLead | None = field(default=None, metadata=shape(omit_default=True))
    """Where it decides what is reserved; the interval covers it."""
    first_runs: FirstRuns | None = field(default=None, metadata=shape(omit_default=True))
    """None where nothing is timed."""

    @property
    def headroom_bytes(self) -> int:
        return self.capacity_bytes - self.peak.device_bytes


def slowest_step(rank_classes: Iterable[RankClassStatement]) -> StepTime | None:
    """For which the other ranks wait; None where no time is known."""
    steps = [rank_class.step for rank_class in rank_classes if rank_class.step is not None]
    return max(steps, key=lambda step: step.seconds, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change of the job spec (dotted key to new value), and what a plan said of it."""

    change: Mapping[str, Any]
    device_bytes: int
    verdict: Verdict


def ranks_text(ranks: str) -> str:
    """`rank 3`, or `ranks 0-6`."""
    return ("rank " if ranks.isdigit() else "ranks ") + ranks


def change_text(change: Mapping[str, Any]) -> str:
    """Keys of a spec and their new values, as advice says them."""
    return ", ".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in change.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutCompile:
    """What the fullest ranks of a compiled job would take without torch.compile, in bytes.

    `more_at_peak` is by category what the eager peak has more, or with a minus less. Where the eager step cannot be
    traced `device_bytes` is None, and `sentence` says why.
    """

    ranks: str
    device_bytes: int | None
    more_at_peak: Mapping[Category, int]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnotherTorch:
    """That a job was planned with another release of torch than it runs with. `difference` is how far plans of the two
    were seen to differ, relative: so much wider is the interval, to either side."""

    asked: str
    planned_with: str
    difference: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What the figures hinge on: versions, and the name of the calibration (`none` if uncalibrated)."""

    planner: str
    torch: str
    allocator_rules: str
    catalog: str
    calibration: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """How long the plan took."""

    trace: float = 0.0
    replay: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceTried:
    """What was done to find advice: also where none was found."""

    planned: int
    by_bound: int
    layouts: int
    """Candidates with other layouts that were looked at."""
    in_time: bool
    closest_change: Mapping[str, Any] = field(default_factory=dict)
    closest_lacks_bytes: int = 0
    not_planned: tuple[str, ...] = field(default=(), metadata=shape(omit_default=True))
    """Changes for which there was no time, or kinds of them: with any left, no advice is known to be the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatement:
    """What the fullest ranks take of the memory that their GPU and their host share, in the phase in which the two
    together take most; in bytes, for each GPU."""

    ranks: str
    phase: Phase
    iteration: int
    device_bytes: int
    host_bytes: int
    """The rank's part of what its node holds at least in main memory."""
    highest_bytes: int
    """Of both together, with the upper end of what the device takes."""
    system_bytes: int
    """What the system holds at rest: it comes on top."""
    floor_bytes: int
    """What should stay free besides."""
    capacity_bytes: int = field(metadata=shape(then="headroom_bytes"))
    verdict: Verdict
    source: str

    @property
    def taken_bytes(self) -> int:
        return self.device_bytes + self.host_bytes + self.system_bytes

    @property
    def headroom_bytes(self) -> int:
        return self.capacity_bytes - self.taken_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedAdapter:
    """What a job with an adapter trains: `parameters` elements beside the modules of these names."""

    kind: str
    rank: int
    modules: tuple[str, ...]
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionStatement:
    """One sentence on what the figures rest on, where in the program it was needed, and how often."""

    about: str
    text: str
    place: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStatement:
    """A line of the program at which a truth value of the device decides: which way was taken, and what would have come
    of the other, as a sentence and, where it takes other memory, as both peaks."""

    place: str
    taken: bool
    outcome: str
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    other_allocated_bytes: int = 0
    other_reserved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepStatement:
    """The highest bytes of the fullest ranks at a step of the program to which its loop was made to count."""

    step: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the ranks of a job will hold, and its grounds: of a spec (`job`), or of a program (`command`), whose fullest
    ranks come first; a spec with `trainer` is both. Ranks without a trace of their own are like the representative of
    their class.

    The fields have the order of the JSON object.
    """

    plan_id: str = ""
    """Empty for a program on the command line, which keeps nothing."""
    trace_id: str = field(default="", metadata=shape(then="verdict"))
    calibrated: bool
    """Whether the intervals come from measurements on this GPU and torch."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """The bundle of a spec, as plain JSON values."""
    command: tuple[str, ...] = ()
    planned: tuple[str, ...] = field(default=(), metadata=shape(omit_default=True))
    """Which one it is, of several runs that the command starts, as sentences."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Given with the request for a program: `name`, `team`, `queue`. Those of a spec are in `job`."""
    gpu: str
    nodes: int
    gpus_per_node: int
    allocator_conf: str = ""
    adapter: TrainedAdapter | None = field(default=None, metadata=shape(omit_default=True))
    ending: str = ""
    iterations: int = 0
    repeated: int = 0
    """Of these, how many did for the allocator what those before them did: they are folded in the replay."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Peaks in bytes of the first rank that was run as `torch.cuda` would say them at its end: since the last of
    `resets` by the program itself."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Evaluations (`eval`), checkpoints saved and loaded, while it was watched."""
    unseen: tuple[str, ...] = ()
    communicators: tuple[int, ...] = ()
    """Sizes of the groups of a rank over which tensors of the device travelled."""
    rank_classes: tuple[RankClassStatement, ...]
    steps_at: tuple[StepStatement, ...] = field(default=(), metadata=shape(omit_default=True))
    host: HostStatement | None = field(default=None, metadata=shape(omit_default=True))
    """What the nodes hold; None of what was made before that was counted."""
    pool: PoolStatement | None = field(default=None, metadata=shape(omit_default=True))
    """Where device and host share their memory: both together."""
    out_of_memory: tuple[str, ...] = ()
    """Where ranks would run out of memory, in CUDA's words; the program is not told, and goes on."""
    assumptions: tuple[AssumptionStatement, ...] = ()
    branches: tuple[BranchStatement, ...] = ()
    advice: tuple[Advice, ...] = ()
    without_compile: WithoutCompile | None = field(default=None, metadata=shape(omit_default=True))
    """Of a compiled job, where it was asked for."""
    another_torch: AnotherTorch | None = field(default=None, metadata=shape(omit_default=True))
    """None where it was planned with the release that it runs with."""
    advice_tried: AdviceTried | None = field(default=None, metadata=shape(omit_default=True))
    """None where no advice was looked for."""
    fitting_spec: str = field(default="", metadata=shape(omit_default=True))
    """The job with the change that its advice says first, as a spec in YAML."""
    provenance: Provenance
    notes: tuple[str, ...] = ()
    """What was assumed, and what was not counted, as sentences."""
    sources: tuple[str, ...] = ()
    """Where the figures outside the allocator and the intervals come from, and which corrections were applied."""
    seconds: Seconds = Seconds()

    @property
    def name(self) -> str:
        """What people call the job."""
        return name_of(self.job) if self.job else self.metadata.get("name") or "the job"

    @property
    def gpu_verdict(self) -> Verdict:
        return worst(rank_class.verdict for rank_class in self.rank_classes)

    @property
    def step(self) -> StepTime | None:
        """Of the slowest rank."""
        return slowest_step(self.rank_classes)

    @property
    def host_verdict(self) -> Verdict:
        """Of the nodes' memory: exceeds, or fits where that is not known."""
        return Verdict.EXCEEDS if self.host is not None and self.host.exceeds else Verdict.FITS

    @property
    def pool_verdict(self) -> Verdict:
        """Of device and host together; fits where each has its own."""
        return Verdict.FITS if self.pool is None else self.pool.verdict

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any rank, and of any node: a job runs only if all of them do."""
        return worst([self.gpu_verdict, self.host_verdict, self.pool_verdict])


def name_of(job: Mapping[str, Any]) -> str:
    """Of the job of a bundle."""
    return str(part_of(job, "metadata").get("name") or "unnamed job")


def gpu_of(job: Mapping[str, Any]) -> str:
    """Of the job of a bundle."""
    gpu = part_of(job, "cluster").get("gpu")
    if isinstance(gpu, Mapping):
        return str(gpu.get("name") or gpu.get("arch") or "GPU")
    return str(gpu or "GPU")


def part_of(job: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A group of a bundle; empty where it is not there."""
    value = job.get(key)
    return value if isinstance(value, Mapping) else {}


_OF_SPECS = ("job", "advice")
_OF_PROGRAMS = (
    "command",
    "metadata",
    "ending",
    "iterations",
    "repeated",
    "counted",
    "seen",
    "unseen",
    "communicators",
    "out_of_memory",
    "assumptions",
    "branches",
)


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as the JSON object of its contract: plain values, keys in the contract's order."""
    left_out = _OF_PROGRAMS if not plan.command else () if plan.job else _OF_SPECS
    return {"schema": PLAN_SCHEMA, **{key: value for key, value in to_plain(plan).items() if key not in left_out}}


def from_json(document: Mapping[str, Any]) -> Plan:
    """The plan that :func:`to_json` wrote, or an earlier planner as `planner.plan/1` or `planner.run/1`.

    Raises PlannerError if the document is of another schema, lacks a key or has a value of a wrong type.
    """
    if document.get("schema") in PLAN_SCHEMAS[1:]:
        job = part_of(document, "job")
        cluster = part_of(job, "cluster")
        of_job = {
            "gpu": gpu_of(job),
            "nodes": cluster.get("nodes"),
            "gpus_per_node": cluster.get("gpus_per_node"),
            "allocator_conf": part_of(job, "allocator").get("conf"),
        }
        document = {**(of_job if job else {}), **document, "schema": PLAN_SCHEMA}
    return from_document(Plan, document, PLAN_SCHEMA, "plan", remedy="plan the job again", strict=False)
