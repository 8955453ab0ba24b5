"""What a program was seen to do, moment by moment, and when enough of it was progress."""

from __future__ import annotations

import time
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice

from planner.events import BETWEEN_ITERATIONS, Phase


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
    NAMED = "named"
    """The program names a phase itself: what happens up to the end of it is no other."""
    NAMED_ENDED = "named phase ended"


@dataclass(frozen=True, slots=True)
class Moment:
    """`position` is the recorder's count of native records; `parameters` names the optimizer's part that steps, `phase`
    is the one that the program names."""

    position: int
    kind: Kind
    parameters: int = 0
    phase: Phase | None = None


_FORWARDS = (Kind.FORWARD, Kind.EVAL, Kind.ASIDE)
_ITERATION_KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.STEP)
_OF_MICRO_BATCHES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
_PHASES = {
    Kind.FORWARD: Phase.FORWARD,
    Kind.EVAL: Phase.EVAL,
    Kind.ASIDE: Phase.EVAL,
    Kind.BACKWARD: Phase.BACKWARD,
    Kind.STEP: Phase.OPTIMIZER_STEP,
    Kind.LOAD: Phase.CHECKPOINT_LOAD,
    Kind.SAVE: Phase.CHECKPOINT_SAVE,
}


@dataclass(slots=True)
class Moments:
    """The log of one program. Optimizers are counted by their parameters: one that steps in parts, or several of them,
    make one iteration."""

    log: list[Moment] = field(default_factory=list)
    steps: Counter[int] = field(default_factory=Counter)
    backward_ends: dict[int, int] = field(default_factory=dict)
    """Of each backward, by its index, the position at which it has ended."""
    steps_in_backward: set[int] = field(default_factory=set)
    """Indices of steps of a parameter or two, each as soon as the backward has its gradient."""
    _seen: dict[int, int] = field(default_factory=dict)
    """Of moments that were earlier than they were seen, by their indices."""
    forwards: int = 0
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

    def add(self, position: int, kind: Kind, parameters: int = 0, phase: Phase | None = None) -> None:
        if kind is Kind.STEP and self._closing is None and self.steps[parameters]:
            self._closing = next(moment.parameters for moment in reversed(self.log) if moment.kind is Kind.STEPPED)
            self._ends = self._find_steps(self._closing)
        if kind is Kind.STEPPED:
            self.steps[parameters] += 1
            self.rounds = max(self.rounds, self.steps[parameters])
            if parameters == self._closing:
                self._ends.append(len(self.log))
        self.forwards += kind in _FORWARDS
        if not self.log or self.log[-1].kind is not kind:
            self._begun[kind].append(len(self.log))
        self.log.append(Moment(position, kind, parameters, phase))

    def end_before(self, index: int) -> int | None:
        """Where what was before the moment of this index has ended, as far as that is known: not of forwards, nor of a
        backward or a step that is still at work. 0 before all moments."""
        if not index:
            return 0
        before = self.log[index - 1]
        if before.kind in (*_FORWARDS, Kind.BACKWARD, Kind.STEP):
            return self.backward_ends.get(index - 1)
        return before.position

    def begin_at(self, index: int, position: int) -> None:
        """The moment of this index was earlier than it was seen, and after the one before it."""
        self._seen.setdefault(index, self.log[index].position)
        self.log[index] = replace(self.log[index], position=position)

    def seen_at(self, index: int) -> int:
        """The position at which the moment of this index was seen."""
        return self._seen.get(index, self.log[index].position)

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
            return [index for index, moment in enumerate(self.log) if moment.kind in _FORWARDS]
        if self._closing is not None:
            return self._ends
        last = next((moment.parameters for moment in reversed(self.log) if moment.kind is Kind.STEPPED), None)
        return [] if last is None else self._find_steps(last)

    def _find_steps(self, parameters: int) -> list[int]:
        return [
            index
            for index, moment in enumerate(self.log)
            if moment.kind is Kind.STEPPED and moment.parameters == parameters
        ]

    def cuts(self, after: int | None) -> list[int]:
        """Positions between which a program may do the same again: where its forwards begin, or else its backwards, up
        to the moment of this index."""
        log = self.log[:after]
        training = Kind.FORWARD if self._begun[Kind.FORWARD] else Kind.BACKWARD
        forwards = {moment.position for moment in log if moment.kind in (training, Kind.EVAL, Kind.ASIDE)}
        # A checkpoint that takes no memory of the device would be folded away with the forward after it.
        checkpoints = {moment.position for moment in log if moment.kind in (Kind.SAVE, Kind.LOAD, Kind.GATHER)}
        return sorted(forwards - checkpoints)

    def evaluations(self, until: int | None = None) -> int:
        """How many evaluations began, up to a position: what lies between two trainings counts once."""
        if self.infers:
            return 0
        surely = self._episodes(Kind.EVAL, until)
        perhaps = self._episodes(Kind.ASIDE, until)
        return len(surely | {episode for episode in perhaps if not {episode - 1, episode + 1} & perhaps})

    def count(self, kind: Kind, until: int | None = None) -> int:
        """How often this was done, up to a position: what is done in parts between two trainings counts once."""
        return len(self._episodes(kind, until))

    def _episodes(self, kind: Kind, until: int | None) -> set[int]:
        ends = self.ends()
        return {
            bisect(ends, index) for index in self._begun[kind] if until is None or self.log[index].position <= until
        }

    def moment_after(self, iterations: int) -> int | None:
        """The index of the moment at which the forward after so many iterations begins; None if it never did."""
        ends = self.ends()
        if len(ends) < iterations or not iterations:
            return None
        begins = _FORWARDS if self.infers else _ITERATION_KINDS
        after = range(ends[iterations - 1] + 1, len(self.log))
        return next((index for index in after if self.log[index].kind in begins), None)

    def phases(self) -> Iterator[tuple[int, Phase, int]]:
        """The index of the moment at which each phase begins, and its iteration. An evaluation, and what else is named
        between micro-batches, begins as often as it is named."""
        ends, done, named = set(self.ends()), 0, 0
        before: tuple[Phase, int] | None = None
        for index, moment in enumerate(self.log):
            kind = Kind.FORWARD if self.infers and moment.kind in _FORWARDS else moment.kind
            named += (kind is Kind.NAMED) - (kind is Kind.NAMED_ENDED)
            if kind is Kind.NAMED:
                phase, before = moment.phase, before if moment.phase in _OF_MICRO_BATCHES else None
            elif named or index in self.steps_in_backward:
                phase = None
            else:
                phase = self._purpose_of_gathering(index, done) if kind is Kind.GATHER else _PHASES.get(kind)
            if phase is not None:
                iteration = done if phase in BETWEEN_ITERATIONS else done + 1
                if (phase, iteration) != before:
                    yield index, phase, iteration
                before = phase, iteration
            done += index in ends

    def _purpose_of_gathering(self, index: int, done: int) -> Phase | None:
        """By what follows; where nothing does (another rank writes), a program that has trained saves."""
        following = (moment.kind for moment in islice(self.log, index, None))
        after = next((kind for kind in following if kind is not Kind.GATHER), None)
        if after in (Kind.LOAD, Kind.SAVE):
            return _PHASES[after]
        return Phase.CHECKPOINT_SAVE if done else None


FEWEST = 3
"""Optimizer state is born in the first iteration, DDP's buckets are made anew in the second."""
MOST = 30
"""A program whose peak still rises then is ended all the same, and the report says so."""
ROUNDS_OF_A_FAILED = 2
"""Of a program that fails: in the second step of its optimizer the state is there that all later ones have."""
FORWARDS = 5
"""Of a program that only infers: so many at least."""
EVALUATIONS = 2
"""The second finds the cache as training has left it, in pieces; the first mostly does not."""
_PATIENCE = 2
"""A steady program is watched for what it has not done yet: so many times the iterations that it took to be steady."""
_PATIENCE_SECONDS = (5.0, 60.0)
"""But no longer than the second; one that only infers as long again as it took so far, within these."""
_EVALUATING, _EVALUATING_SECONDS = 15, 300.0
"""The end of an evaluation that has begun is waited for so many times longer, up to so long."""
_SHARE_OF_TIME = 0.7
"""The rest of a rank's time is for writing down what it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a program has done. Evaluations and checkpoints are over; `idle` optimizers have not stepped twice; it
    `waits` for the largest of its batches, which it is given early."""

    iterations: int
    evaluations: int = 0
    checkpoints: int = 0
    idle: int = 0
    waits: bool = False

    @property
    def is_whole(self) -> bool:
        return self.evaluations >= EVALUATIONS and self.checkpoints > 0 and not self.idle


@dataclass(slots=True)
class Stopping:
    """`steps` 0: once it is steady (from the third iteration on one changes neither peak), until everything was seen,
    or until patience ends (None: by how many iterations it took until then). `seconds` is all the time that there is;
    `sizes` tells how many came of its inputs; the clocks are asked for seconds, of a processor and of the day."""

    steps: int = 0
    patience_seconds: float | None = None
    seconds: float = float("inf")
    sizes: Callable[[], int] = lambda: 1
    worked: Callable[[], float] = time.process_time
    passed: Callable[[], float] = time.perf_counter
    reason: str = ""
    """For people, once it has been decided."""
    _peaks: list[tuple[int, int]] = field(default_factory=list)
    _steady: int = 0
    """The first iteration that changed no peak."""
    _news: tuple[int, ...] = ()
    """The most of what is waited for: evaluations, checkpoints, optimizers that have stepped twice."""
    _waits_since: float = 0.0
    _waits_from: int = 0
    """The iterations that were over then."""
    _took: float = 0.0
    """Seconds of a processor until it was steady, or had inferred for the first time as often as is looked for."""
    _inferred: tuple[int, ...] | None = None
    """The highest figures of a program that only infers, when they were looked at last."""
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.passed()

    @property
    def patience(self) -> float:
        """How long a program is watched that only infers, or evaluates, in seconds of a processor."""
        if self.patience_seconds is not None:
            return self.patience_seconds
        shortest, longest = _PATIENCE_SECONDS
        return min(max(self._took, shortest), longest)

    @property
    def longest_seconds(self) -> float:
        """How long what has begun, or is known to come, is waited for."""
        return _EVALUATING_SECONDS if self.patience_seconds is None else self.patience_seconds

    def is_over(self, progress: Progress, highest: Callable[[], tuple[int, int]]) -> bool:
        """Whether the program is ended; `highest` tells its peaks so far, (allocated, reserved)."""
        if self.steps:
            self.reason = f"ended after {iterations_text(self.steps)}, as asked for"
            return progress.iterations >= self.steps
        waits = progress.waits and not self.is_late()
        if not self._steady and not self._settles(progress.iterations, highest, waits=waits):
            return progress.iterations >= MOST and not waits
        if progress.is_whole:
            self.reason = (
                f"ended after {iterations_text(progress.iterations)}: {self._since()}, and everything was seen"
            )
            return True
        return self.is_out_of_patience(progress)

    def has_inferred_enough(
        self, forwards: int, highest: Callable[[], tuple[int, ...]], *, waits: bool = False
    ) -> bool:
        """Whether a program that has done so many forwards and trained nothing is ended: a while has passed in which
        none of them raised any of the `highest` figures. It may be long in coming to its training. `waits` as in
        Progress."""
        if forwards < max(FORWARDS, self.steps) or (waits and not self.is_late()):
            return False
        waited = self.worked() - self._waits_since
        if self._inferred is not None and waited < self.patience:
            return False
        before, self._inferred = self._inferred, highest()
        if before != self._inferred:
            self._waits_since = self.worked()
            self._took = self._took or self._waits_since
            return False
        self.reason = f"ended after {forwards} forwards: it only infers, and none raised a peak in {waited:.0f} s"
        return True

    @property
    def asked(self) -> str:
        """Why forwards of a program that only infers are left out, where it was asked for fewer."""
        return f"ended after {iterations_text(self.steps)}, as asked for: it only infers"

    def is_out_of_patience(self, progress: Progress, *, evaluates: bool = False) -> bool:
        """Whether a steady program was watched long enough, whatever it lacks; longer if it `evaluates` just now."""
        if not self._steady or (progress.waits and not self.is_late()):
            return False
        # What is new makes it worth to wait for more.
        news = (min(progress.evaluations, EVALUATIONS), min(progress.checkpoints, 1), -progress.idle)
        if not self._news or any(now > before for now, before in zip(news, self._news, strict=True)):
            self._news = tuple(map(max, news, self._news or news))
            self._waits_since, self._waits_from = self.worked(), progress.iterations
        waited, iterations = self.worked() - self._waits_since, progress.iterations - self._waits_from
        if evaluates:
            is_over = waited >= max(self.patience, min(_EVALUATING * self.patience, _EVALUATING_SECONDS))
        elif self.patience_seconds is not None:
            is_over = waited >= self.patience
        else:
            is_over = iterations >= _PATIENCE * self._steady or waited >= _PATIENCE_SECONDS[1]
        if not is_over and not self.is_late():
            return False
        how = f"nothing new came in {iterations_text(iterations)} (--patience watches longer)"
        if self.patience_seconds is not None:
            how = f"nothing new came in {waited:.0f} s"
        self.reason = f"ended after {iterations_text(progress.iterations)}: {self._since()}, and {how}"
        return True

    def is_late(self) -> bool:
        """Whether what is left of the time is for writing down what was progress."""
        return self.passed() - self._began >= _SHARE_OF_TIME * self.seconds

    def _settles(self, iterations: int, highest: Callable[[], tuple[int, int]], *, waits: bool) -> bool:
        """Whether it is steady from this iteration on; each is looked at once."""
        if iterations <= len(self._peaks):
            return False
        self._peaks.append(highest())
        self.reason = f"ended after {iterations_text(iterations)}, although its peak still rises"
        if waits or iterations < FEWEST or self._peaks[-1] != self._peaks[-2]:
            return False
        self._steady, self._waits_since = iterations, self.worked()
        self._took = self._waits_since
        return True

    def _since(self) -> str:
        sizes = f" with inputs of {sizes} sizes" if (sizes := self.sizes()) > 1 else ""
        return f"its peak has not risen since iteration {self._steady - 1}{sizes}"


def iterations_text(iterations: int) -> str:
    """`3 iterations`."""
    return "1 iteration" if iterations == 1 else f"{iterations} iterations"
