"""Looks through the candidates of a space without planning any: rules, the lower bound, the roofline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.bound.lower_bound import lower_bound
from planner.errors import SpecError
from planner.searching.effort import effort_of, unusual_of
from planner.searching.objectives import Objective
from planner.searching.roofline import Cost, cost_of
from planner.searching.rules import broken_rule
from planner.searching.space import UNTRACED, Candidate, Space

MOST_LOOKED_AT = 200_000
"""Candidates of one search; of larger spaces so many are looked at, spread evenly, and the answer says so."""
_TELL_EVERY = 500

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate that no rule and no bound leaves out."""

    least: float
    """Of the objective: no plan of it says less."""
    number: int
    least_bytes: int
    capacity_bytes: int
    cost: Cost | None
    effort: float = 1.0
    """Of its plan, beside others."""
    unusual: int = 0
    """How few people ask for it."""

    @property
    def rank(self) -> tuple[float, int]:
        """Before or behind others."""
        return self.least, self.number


@dataclass(slots=True)
class Scales:
    """What was seen of a space."""

    size: int
    looked_at: int = 0
    ruled_out: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)
    """What a rule said of the first candidate that broke it."""
    beyond_bound: int = 0
    nearest_bound: tuple[int, int] | None = None
    """Of those the smallest excess, in bytes, and whose it is."""
    groups: dict[tuple[object, ...], list[Weighed]] = field(default_factory=dict)
    """Candidates that share a trace, by what decides it."""
    in_time: bool = True

    @property
    def left(self) -> int:
        """Candidates that plans decide about."""
        return sum(len(each) for each in self.groups.values())


def weigh(
    space: Space,
    objective: Objective,
    found: Scales,
    progress: Progress = lambda _: None,
    most: int = MOST_LOOKED_AT,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Rules, bound and cost of each candidate, kept in `found`. Raises SpecError if rules leave none."""
    total = min(space.size, most)
    for number in space.numbers(most):
        if found.looked_at % _TELL_EVERY == 0:
            progress(f"looked at {found.looked_at:,} of {total:,} candidates, {found.left:,} may fit")
            if is_over():
                found.in_time = False
                break
        found.looked_at += 1
        _weigh_one(space, objective, number, found)
    if not found.groups and not found.beyond_bound and found.in_time:
        raise _emptied(found)
    for group in found.groups.values():
        group.sort(key=lambda each: each.rank)


def _weigh_one(space: Space, objective: Objective, number: int, found: Scales) -> None:
    candidate = space.candidate(number)
    if isinstance(candidate, str):
        found.ruled_out[candidate] += 1
        return
    rule, said = broken_rule(candidate.job)
    if rule:
        found.ruled_out[rule] += 1
        found.example.setdefault(rule, said)
        return
    bound = lower_bound(candidate.job)
    if bound.exceeds:
        found.beyond_bound += 1
        excess = bound.least_bytes - bound.capacity_bytes
        if found.nearest_bound is None or excess < found.nearest_bound[0]:
            found.nearest_bound = (excess, number)
        return
    cost = cost_of(candidate.job)
    weighed = Weighed(
        least=objective.least(cost, bound),
        number=number,
        least_bytes=bound.least_bytes,
        capacity_bytes=bound.capacity_bytes,
        cost=cost,
        effort=effort_of(candidate.job),
        unusual=unusual_of(candidate.job),
    )
    found.groups.setdefault(_traced_key(space, candidate), []).append(weighed)


def _traced_key(space: Space, candidate: Candidate) -> tuple[object, ...]:
    traced = (each for axis, each in zip(space.axes, candidate.choice, strict=True) if axis.name not in UNTRACED)
    return (*traced, candidate.job.cluster.gpu.arch)


def _emptied(found: Scales) -> SpecError:
    """Which constraint emptied the space."""
    worst, count = found.ruled_out.most_common(1)[0]
    others = ", ".join(f"{rule} ({number:,})" for rule, number in found.ruled_out.most_common()[1:6])
    said = f": {found.example[worst]}" if found.example.get(worst) else ""
    return SpecError(
        f"no candidate is left of {found.looked_at:,}: {count:,} break the rule that {worst}{said}"
        + (f"; others: {others}" if others else ""),
        allowed="axes whose values go together",
        remedy="widen the axis that the rule names, or change --gpus or --global-batch",
    )
