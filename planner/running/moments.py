"""What a program was seen to do, moment by moment, and the phases and iterations that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from planner.events import Phase


class Kind(StrEnum):
    """What begins (or, of a step, ends) at a moment."""

    FORWARD = "forward"
    EVAL = "eval"
    BACKWARD = "backward"
    STEP = "step"
    STEPPED = "stepped"
    LOAD = "load"
    SAVE = "save"


@dataclass(frozen=True, slots=True)
class Moment:
    """`position` is the recorder's count of native records; `parameters` names the optimizer's part that steps."""

    position: int
    kind: Kind
    parameters: int = 0


@dataclass(slots=True)
class Moments:
    """The log of one program. Optimizers are counted by their parameters: one that steps in parts, or several of them,
    make one iteration."""

    log: list[Moment] = field(default_factory=list)
    steps: Counter[int] = field(default_factory=Counter)
    _closing: int | None = None
    """Of the first round of optimizers the last: its step ends an iteration."""

    def add(self, position: int, kind: Kind, parameters: int = 0) -> None:
        if kind is Kind.STEP and self._closing is None and self.steps[parameters]:
            self._closing = next(each.parameters for each in reversed(self.log) if each.kind is Kind.STEPPED)
        if kind is Kind.STEPPED:
            self.steps[parameters] += 1
        self.log.append(Moment(position, kind, parameters))

    @property
    def iterations(self) -> int:
        """Whole ones, as far as is known: the first is known to be over when the second begins to step."""
        return 0 if self._closing is None else self.steps[self._closing]

    def ends(self) -> list[int]:
        """Of each iteration the index of its last moment, in order; also of the last of a program that has ended."""
        stepped = [index for index, each in enumerate(self.log) if each.kind is Kind.STEPPED]
        closing = self._closing
        if closing is None and stepped:
            closing = self.log[stepped[-1]].parameters
        return [index for index in stepped if self.log[index].parameters == closing]

    def seen(self, kind: Kind, until: int | None = None) -> int:
        """How often this began, up to a position."""
        return sum(each.kind is kind and (until is None or each.position <= until) for each in self.log)

    def end_of(self, iterations: int) -> int | None:
        """The position at which the forward after so many iterations begins; None if it never did."""
        ends = self.ends()
        if len(ends) < iterations or not iterations:
            return None
        after = self.log[ends[iterations - 1] + 1 :]
        begins = (Kind.FORWARD, Kind.BACKWARD, Kind.STEP)
        return next((each.position for each in after if each.kind in begins), None)

    def phases(self) -> Iterator[tuple[int, Phase, int]]:
        """Where each phase begins, and its iteration."""
        ends, done = set(self.ends()), 0
        before: tuple[Phase, int] | None = None
        for index, each in enumerate(self.log):
            phase = _PHASES.get(each.kind)
            if phase is not None:
                iteration = done if each.kind in (Kind.EVAL, Kind.LOAD) else done + 1
                if (phase, iteration) != before:
                    yield each.position, phase, iteration
                before = phase, iteration
            done += index in ends


_PHASES = {
    Kind.FORWARD: Phase.FORWARD,
    Kind.EVAL: Phase.EVAL,
    Kind.BACKWARD: Phase.BACKWARD,
    Kind.STEP: Phase.OPTIMIZER_STEP,
    Kind.LOAD: Phase.CHECKPOINT_LOAD,
}
