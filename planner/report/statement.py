"""A plan as values, and as the JSON object `planner.plan/1`: the public contract, key order included.

All sizes are bytes. Stored plans come back through :func:`from_json`, equal to what they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from planner.allocator.host.statement import HostStatement, host_from_json, host_to_json
from planner.errors import PlannerError
from planner.events import Category, Phase
from planner.report import shared_gpu
from planner.report.shared_gpu import SharedGpu


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


def read_moment(document: Mapping[str, Any]) -> NamedMoment:
    """The moment that was written as its fields."""
    return NamedMoment(**{**document, "phase": Phase(document["phase"])})


SCHEMA = "planner.plan/1"
_WITHOUT_COMPILE = "without_compile"
_ANOTHER_TORCH = "another_torch"


class Verdict(StrEnum):
    """Whether a rank fits into its GPU; from best to worst."""

    FITS = "fits"
    TIGHT = "tight"
    EXCEEDS = "exceeds"


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
class RankClassStatement:
    """What every rank of one class will hold. `headroom_bytes` is capacity less device bytes, negative if over."""

    representative: int
    ranks: str
    coordinates: Mapping[str, int]
    peak: Peak
    capacity_bytes: int
    verdict: Verdict
    cache_releases: int
    at_peak: Mapping[Category, int]
    phases: tuple[PhaseStatement, ...]
    outside_allocator: OutsideAllocator
    holders: tuple[Holder, ...]
    shared: SharedGpu | None = None
    """Of a GPU that the trainer shares with an engine: then `peak.device_bytes` and its interval are those of the
    fullest phase, everybody together; all else is of the trainer's process."""
    moments: tuple[NamedMoment, ...] = ()
    """What it takes beyond its usual step; the peak is that of the worst of them."""

    @property
    def headroom_bytes(self) -> int:
        return self.capacity_bytes - self.peak.device_bytes


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
    """Changes that a plan decided."""
    by_bound: int
    """Changes that were excluded without one."""
    layouts: int
    """Candidates with other layouts that were looked at."""
    in_time: bool
    """Whether it came to its end before its time was over."""
    closest_change: Mapping[str, Any] = field(default_factory=dict)
    """Of the changes that are not enough, the one that lacks the fewest bytes; empty where none was planned."""
    closest_lacks_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to a job: one statement per rank class. `job` is the bundle, as plain JSON values."""

    plan_id: str
    trace_id: str
    calibrated: bool
    job: Mapping[str, Any]
    rank_classes: tuple[RankClassStatement, ...]
    provenance: Provenance
    advice: tuple[Advice, ...] = ()
    without_compile: WithoutCompile | None = None
    """Of a compiled job, where it was asked for."""
    another_torch: AnotherTorch | None = None
    """None where it was planned with the release that it runs with."""
    host: HostStatement | None = None
    """What the nodes hold; None of plans that were made before it was asked."""
    advice_tried: AdviceTried | None = None
    """None where no advice was looked for."""
    seconds: Seconds = field(default_factory=Seconds)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any rank, and of any node: a job runs only if all of them do."""
        return max(worst_verdict(self.rank_classes), self.host_verdict, key=list(Verdict).index)

    @property
    def host_verdict(self) -> Verdict:
        """Of the nodes' memory."""
        return host_verdict(self.host)


class Judged(Protocol):
    """A plan, or a program's run: rank classes with what their figures hinge on."""

    @property
    def rank_classes(self) -> tuple[RankClassStatement, ...]:
        """What each class of ranks will hold."""

    @property
    def host(self) -> HostStatement | None:
        """What the nodes hold; None where that is not known."""

    @property
    def calibrated(self) -> bool:
        """Whether the intervals come from measurements on this GPU and torch."""

    @property
    def provenance(self) -> Provenance:
        """Versions and tables."""

    @property
    def seconds(self) -> Seconds:
        """How long it took."""

    @property
    def verdict(self) -> Verdict:
        """The worst of any rank."""


def worst_verdict(rank_classes: Sequence[RankClassStatement]) -> Verdict:
    """That of the rank that is worst off; nothing fits best."""
    order = list(Verdict)
    return max((each.verdict for each in rank_classes), key=order.index, default=Verdict.FITS)


def host_verdict(host: HostStatement | None) -> Verdict:
    """Of the nodes' memory; fits where nothing is said of it."""
    said = None if host is None else host.verdict
    return Verdict.FITS if said is None else Verdict(said)


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as the JSON object of the contract: plain values, keys in the contract's order."""
    return {
        "schema": SCHEMA,
        "plan_id": plan.plan_id,
        "trace_id": plan.trace_id,
        "verdict": plan.verdict.value,
        "calibrated": plan.calibrated,
        "job": _plain(plan.job),
        "rank_classes": [rank_class_to_json(each) for each in plan.rank_classes],
        **({} if plan.host is None else {"host": host_to_json(plan.host)}),
        "advice": [
            {"change": _plain(each.change), "device_bytes": each.device_bytes, "verdict": each.verdict.value}
            for each in plan.advice
        ],
        **({} if plan.without_compile is None else {_WITHOUT_COMPILE: fields_to_json(plan.without_compile)}),
        **({} if plan.another_torch is None else {_ANOTHER_TORCH: fields_to_json(plan.another_torch)}),
        **({} if plan.advice_tried is None else {"advice_tried": fields_to_json(plan.advice_tried)}),
        "provenance": fields_to_json(plan.provenance),
        "seconds": fields_to_json(plan.seconds),
    }


def from_json(document: Mapping[str, Any]) -> Plan:
    """The plan that :func:`to_json` wrote.

    Raises PlannerError if the document is of another schema or lacks a key.
    """
    schema = document.get("schema")
    if schema != SCHEMA:
        raise PlannerError(f"a document of schema {schema!r} is no plan", allowed=SCHEMA, place="schema")
    try:
        return Plan(
            plan_id=document["plan_id"],
            trace_id=document["trace_id"],
            calibrated=document["calibrated"],
            job=document["job"],
            rank_classes=tuple(read_rank_class(each) for each in document["rank_classes"]),
            host=host_from_json(document["host"]) if "host" in document else None,
            advice=tuple(
                Advice(change=each["change"], device_bytes=each["device_bytes"], verdict=Verdict(each["verdict"]))
                for each in document["advice"]
            ),
            without_compile=_read_without_compile(document.get(_WITHOUT_COMPILE)),
            another_torch=AnotherTorch(**document[_ANOTHER_TORCH]) if _ANOTHER_TORCH in document else None,
            advice_tried=AdviceTried(**document["advice_tried"]) if "advice_tried" in document else None,
            provenance=Provenance(**document["provenance"]),
            seconds=Seconds(**document["seconds"]),
        )
    except KeyError as missing:
        raise PlannerError(f"the plan lacks {missing}", remedy="plan the job again") from missing
    except (TypeError, ValueError) as wrong:
        raise PlannerError(f"the plan cannot be read: {wrong}", remedy="plan the job again") from wrong


def rank_class_to_json(statement: RankClassStatement) -> dict[str, Any]:
    """One rank class as plain values, keys in the contract's order."""
    return {
        "representative": statement.representative,
        "ranks": statement.ranks,
        "coordinates": dict(statement.coordinates),
        "peak": fields_to_json(statement.peak),
        "capacity_bytes": statement.capacity_bytes,
        "headroom_bytes": statement.headroom_bytes,
        "verdict": statement.verdict.value,
        "cache_releases": statement.cache_releases,
        "at_peak": {category.value: statement.at_peak.get(category, 0) for category in Category},
        "phases": [fields_to_json(each) for each in statement.phases],
        "outside_allocator": fields_to_json(statement.outside_allocator),
        "holders": [fields_to_json(each) for each in statement.holders],
        **({} if statement.shared is None else {"shared": shared_gpu.to_json(statement.shared)}),
        **({"moments": [fields_to_json(each) for each in statement.moments]} if statement.moments else {}),
    }


def _read_without_compile(document: Mapping[str, Any] | None) -> WithoutCompile | None:
    if document is None:
        return None
    more = {Category(name): count for name, count in document["more_at_peak"].items()}
    return WithoutCompile(**{**document, "more_at_peak": more})


def read_rank_class(document: Mapping[str, Any]) -> RankClassStatement:
    """What :func:`rank_class_to_json` wrote."""
    peak = document["peak"]
    low, high = peak["interval_bytes"]
    return RankClassStatement(
        representative=document["representative"],
        ranks=document["ranks"],
        coordinates=document["coordinates"],
        peak=Peak(**{**peak, "phase": Phase(peak["phase"]), "interval_bytes": (low, high)}),
        capacity_bytes=document["capacity_bytes"],
        verdict=Verdict(document["verdict"]),
        cache_releases=document["cache_releases"],
        at_peak={Category(name): count for name, count in document["at_peak"].items()},
        phases=tuple(PhaseStatement(**{**each, "phase": Phase(each["phase"])}) for each in document["phases"]),
        outside_allocator=OutsideAllocator(**document["outside_allocator"]),
        holders=tuple(
            Holder(**{**each, "category": Category(each["category"]), "shape": tuple(each["shape"])})
            for each in document["holders"]
        ),
        shared=shared_gpu.from_json(document["shared"]) if "shared" in document else None,
        moments=tuple(read_moment(each) for each in document.get("moments", ())),
    )


def fields_to_json(record: Any) -> dict[str, Any]:
    """The fields of a record as plain values, by their names."""
    return {name: _plain(getattr(record, name)) for name in record.__dataclass_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
