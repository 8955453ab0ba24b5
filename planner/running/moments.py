"""What a program was seen to do, moment by moment, and the phases and iterations that follow from it."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from planner.events import Phase


class Kind(StrEnum):
    """What begins (or, of a step, ends) at a moment."""

    FORWARD = "forward"
    EVAL = "eval"
    ASIDE = "aside"
    """A forward without gradients of a module that is not trained, or is not told to be evaluated: a teacher's, a
    generator's. An evaluation all the same, unless every iteration has one."""
    BACKWARD = "backward"
    STEP = "step"
    STEPPED = "stepped"
    LOAD = "load"
    SAVE = "save"
    GATHER = "gather"
    """A state dict is made by torch's own functions: to be saved, or to be loaded into."""


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
    forwards: int = 0
    """Of every kind."""
    infers: bool = False
    """Whether the program was found to infer and never to train: each of its forwards is an iteration."""
    rounds: int = 0
    """How often the optimizer has stepped that steps most: what several do one after another is as far apart, from one
    iteration to the next, by the steps of any of them. Also before it is known where an iteration ends."""
    _closing: int | None = None
    """Of the first round of optimizers the last: its step ends an iteration."""
    _ends: list[int] = field(default_factory=list)
    """Once that is known."""
    _begun: defaultdict[Kind, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Indices of moments before which another kind was."""

    def add(self, position: int, kind: Kind, parameters: int = 0) -> None:
        if kind is Kind.STEP and self._closing is None and self.steps[parameters]:
            self._closing = next(each.parameters for each in reversed(self.log) if each.kind is Kind.STEPPED)
            self._ends = self._stepped_by(self._closing)
        if kind is Kind.STEPPED:
            self.steps[parameters] += 1
            self.rounds = max(self.rounds, self.steps[parameters])
            if parameters == self._closing:
                self._ends.append(len(self.log))
        self.forwards += kind in _FORWARDS
        if not self.log or self.log[-1].kind is not kind:
            self._begun[kind].append(len(self.log))
        self.log.append(Moment(position, kind, parameters))

    @property
    def trains(self) -> bool:
        """Whether there was a backward, or a step."""
        return bool(self.steps or self._begun[Kind.BACKWARD])

    @property
    def iterations(self) -> int:
        """Whole ones, as far as is known: the first is known to be over when the second begins to step."""
        return 0 if self._closing is None else self.steps[self._closing]

    def ends(self) -> list[int]:
        """Of each iteration the index of its last moment, in order; also of the last of a program that has ended."""
        if self.infers:
            return [index for index, each in enumerate(self.log) if each.kind in _FORWARDS]
        if self._closing is not None:
            return self._ends
        last = next((each.parameters for each in reversed(self.log) if each.kind is Kind.STEPPED), None)
        return [] if last is None else self._stepped_by(last)

    def _stepped_by(self, parameters: int) -> list[int]:
        return [
            index for index, each in enumerate(self.log) if each.kind is Kind.STEPPED and each.parameters == parameters
        ]

    def cuts(self, until: int) -> list[int]:
        """Positions between which a program may do the same again: where its forwards begin, or else its backwards."""
        of_kind = {kind: [each.position for each in self.log if each.kind is kind] for kind in Kind}
        forwards = of_kind[Kind.FORWARD] or of_kind[Kind.BACKWARD]
        found = {*forwards, *of_kind[Kind.EVAL], *of_kind[Kind.ASIDE]}
        return sorted(each for each in found if each < until)

    def evaluations(self, until: int | None = None) -> int:
        """How many evaluations began, up to a position: what lies between two trainings counts once."""
        if self.infers:
            return 0
        surely = self._episodes(Kind.EVAL, until)
        perhaps = self._episodes(Kind.ASIDE, until)
        return len(surely | {each for each in perhaps if not {each - 1, each + 1} & perhaps})

    def seen(self, kind: Kind, until: int | None = None) -> int:
        """How often this was done, up to a position: what is done in parts between two trainings counts once."""
        return len(self._episodes(kind, until))

    def _episodes(self, kind: Kind, until: int | None) -> set[int]:
        """After how many iterations this began."""
        ends = self.ends()
        positions = ((index, self.log[index].position) for index in self._begun[kind])
        return {bisect(ends, index) for index, position in positions if until is None or position <= until}

    def end_of(self, iterations: int) -> int | None:
        """The position at which the forward after so many iterations begins; None if it never did."""
        after = self.moment_after(iterations)
        return None if after is None else self.log[after].position

    def moment_after(self, iterations: int) -> int | None:
        """As `end_of`, the index of that moment."""
        ends = self.ends()
        if len(ends) < iterations or not iterations:
            return None
        begins = _FORWARDS if self.infers else _OF_AN_ITERATION
        after = range(ends[iterations - 1] + 1, len(self.log))
        return next((index for index in after if self.log[index].kind in begins), None)

    def phases(self) -> Iterator[tuple[int, Phase, int]]:
        """Where each phase begins, and its iteration."""
        return ((self.log[index].position, phase, iteration) for index, phase, iteration in self.phase_moments())

    def phase_moments(self) -> Iterator[tuple[int, Phase, int]]:
        """As `phases`, by the index of the moment."""
        ends, done = set(self.ends()), 0
        before: tuple[Phase, int] | None = None
        for index, each in enumerate(self.log):
            kind = Kind.FORWARD if self.infers and each.kind in _FORWARDS else each.kind
            phase = self._purpose_of_gathering(index, done) if kind is Kind.GATHER else _PHASES.get(kind)
            if phase is not None:
                iteration = done + 1 if kind in _OF_AN_ITERATION else done
                if (phase, iteration) != before:
                    yield index, phase, iteration
                before = phase, iteration
            done += index in ends

    def _purpose_of_gathering(self, index: int, done: int) -> Phase | None:
        """By what follows; where nothing does (another rank writes), a program that has trained saves."""
        after = next((each.kind for each in islice(self.log, index, None) if each.kind is not Kind.GATHER), None)
        if after in (Kind.LOAD, Kind.SAVE):
            return _PHASES[after]
        return Phase.CHECKPOINT_SAVE if done else None


_FORWARDS = (Kind.FORWARD, Kind.EVAL, Kind.ASIDE)
_OF_AN_ITERATION = (Kind.FORWARD, Kind.BACKWARD, Kind.STEP)
_PHASES = {
    Kind.FORWARD: Phase.FORWARD,
    Kind.EVAL: Phase.EVAL,
    Kind.ASIDE: Phase.EVAL,
    Kind.BACKWARD: Phase.BACKWARD,
    Kind.STEP: Phase.OPTIMIZER_STEP,
    Kind.LOAD: Phase.CHECKPOINT_LOAD,
    Kind.SAVE: Phase.CHECKPOINT_SAVE,
}
