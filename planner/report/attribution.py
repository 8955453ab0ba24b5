"""Who holds the bytes at the allocated peak: per category, per holder, and in the classes of DNNMem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.allocator.timeline import Timeline
from planner.events import Category, Event, Phase, Role
from planner.report.lives import Life, alive_at, phase_spans
from planner.report.statement import Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The allocated peak taken apart.

    `at_peak` sums block bytes, slack included, to the peak; `requested_at_peak` the bytes that were asked for.
    """

    event: int
    phase: Phase
    iteration: int
    at_peak: Mapping[Category, int]
    requested_at_peak: Mapping[Category, int]
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DnnMem:
    """Device bytes in the classes of DNNMem (Gao et al., ESEC/FSE 2020).

    `resident` is the CUDA context and what else lives outside, internal fragmentation and the allocator's reserve.
    """

    weight_bytes: int
    in_out_bytes: int
    ephemeral_bytes: int
    resident_bytes: int


class HolderKey(NamedTuple):
    """What tells one holder from another. A tuple: there may be a million to be added up."""

    category: Category
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str


_CLASSES = {
    Category.PARAMETER: "weight",
    Category.GRADIENT: "weight",
    Category.BUCKET: "weight",
    Category.OPTIMIZER_STATE: "weight",
    Category.ACTIVATION: "in_out",
    Category.INPUT: "in_out",
    Category.TEMPORARY: "ephemeral",
    Category.WORKSPACE: "ephemeral",
    Category.COMMUNICATION: "ephemeral",
    Category.OTHER: "ephemeral",
}


def attribute(events: Sequence[Event], timeline: Timeline) -> Attribution:
    """The first moment of the highest allocated bytes, and whose they are."""
    moment = timeline.peak_allocated_index
    at_peak = dict.fromkeys(Category, 0)
    requested = dict.fromkeys(Category, 0)
    held: Counter[HolderKey] = Counter()
    counts: Counter[HolderKey] = Counter()
    for life in alive_at(events, moment):
        size = timeline.block_bytes[life.block]
        key = holder_of(life, life.role_at(moment))
        at_peak[key.category] += size
        requested[key.category] += life.requested_bytes
        held[key] += size
        counts[key] += 1
    holders = [Holder(bytes=size, count=counts[key], **key._asdict()) for key, size in held.items()]
    where = next(each for each in phase_spans(events) if moment < each.last)
    peak = timeline.peak_allocated_bytes
    assert sum(at_peak.values()) == peak, f"{sum(at_peak.values())} bytes have a holder, {peak} are allocated"
    return Attribution(
        event=moment,
        phase=where.phase,
        iteration=where.iteration,
        at_peak=at_peak,
        requested_at_peak=requested,
        holders=tuple(sorted(holders, key=lambda each: (-each.bytes, each.category, each.module, each.op))),
    )


def dnnmem(attribution: Attribution, device_bytes: int) -> DnnMem:
    """The peak in DNNMem's classes: requested bytes by class, everything else of the device bytes is resident."""
    sums = dict.fromkeys(("weight", "in_out", "ephemeral"), 0)
    for category, requested in attribution.requested_at_peak.items():
        sums[_CLASSES[category]] += requested
    return DnnMem(
        weight_bytes=sums["weight"],
        in_out_bytes=sums["in_out"],
        ephemeral_bytes=sums["ephemeral"],
        resident_bytes=device_bytes - sum(sums.values()),
    )


def holder_of(life: Life, role: Role | None) -> HolderKey:
    """Who holds a block while it has this role."""
    origin = life.origin
    category = role.category if role else life.unnamed
    module = origin.module or (role.name if role else "")
    return HolderKey(category, module, origin.op, origin.shape, origin.dtype)
