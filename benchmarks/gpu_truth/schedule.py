"""Which case is begun next: the most valuable one that can end in time. Pure logic: the clock is an argument.

What a case takes is expected from what it took before, else from others of its group, else from a first guess.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CAUTION = 2.0
"""Times the median of a group is what another of its cases is expected to take: cases of a group are not alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A case as the schedule sees it."""

    name: str
    group: str
    alone: bool = False
    """Nothing else runs at the same time."""


@dataclass(slots=True)
class Costs:
    """Seconds that cases took. `guesses` are those of a case of each group, before anything was seen."""

    guesses: Mapping[str, float]
    _of_case: dict[str, float] = field(default_factory=dict)
    _of_group: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def learn(self, name: str, group: str, seconds: float) -> None:
        """A case ended, or was ended, after so long."""
        self._of_case[name] = max(seconds, self._of_case.get(name, 0.0))
        self._of_group[group].append(seconds)

    def expected(self, case: Waiting) -> float:
        """Seconds that a case will take."""
        if case.name in self._of_case:
            return self._of_case[case.name]
        seen = self._of_group.get(case.group)
        return CAUTION * statistics.median(seen) if seen else self.guesses[case.group]


class Schedule:
    """The cases in the order of their value, `slots` at a time, until `seconds` have passed."""

    def __init__(self, cases: Iterable[Waiting], costs: Costs, *, slots: int, seconds: float) -> None:
        self.waiting = list(cases)
        """Those that were not begun, in their order."""
        self._costs, self._slots, self._seconds = costs, max(slots, 1), seconds
        self._running: dict[str, Waiting] = {}

    def begin(self, now: float) -> Waiting | None:
        """The case to begin at this time; None if all slots are taken, or nothing more can end in time.

        A case that wants the device for itself waits until the others have ended, and those that are worth less wait
        behind it; one that would not end in time holds up nobody.
        """
        if len(self._running) >= self._slots or any(each.alone for each in self._running.values()):
            return None
        for place, case in enumerate(self.waiting):
            if now + self._costs.expected(case) > self._seconds:
                continue
            if case.alone and self._running:
                return None
            self._running[case.name] = self.waiting.pop(place)
            return case
        return None

    def end(self, case: Waiting, seconds: float) -> None:
        """The case ended after so long."""
        del self._running[case.name]
        self._costs.learn(case.name, case.group, seconds)

    def left(self, now: float) -> float:
        """Seconds until everything has to have ended."""
        return self._seconds - now


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What is expected of a group: how many of its cases, in how many seconds by the clock."""

    name: str
    cases: int
    seconds: float


def expect(cases: Sequence[Waiting], costs: Costs, *, slots: int) -> tuple[GroupPlan, ...]:
    """The groups in the order of their first cases, each as if it had all slots, or one where its cases are alone."""
    groups: dict[str, list[Waiting]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return tuple(
        GroupPlan(name=name, cases=len(members), seconds=_elapsed(members, costs, max(slots, 1)))
        for name, members in groups.items()
    )


def _elapsed(members: Sequence[Waiting], costs: Costs, slots: int) -> float:
    alone = sum(costs.expected(each) for each in members if each.alone)
    beside = [costs.expected(each) for each in members if not each.alone]
    return alone + max(sum(beside) / slots, max(beside, default=0.0))
