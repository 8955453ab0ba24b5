"""The largest micro-batch or sequence of a job that fits, and the fewest GPUs on which it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from planner.errors import SpecError
from planner.job.bound.lower_bound import lower_bound
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.job.trainer import micro_batch_size
from planner.searching import trainer_axes
from planner.searching.axes import apply, fault_of, known_name, path_of
from planner.searching.engine import Row, search
from planner.searching.exact_plans import Answers, Exact, OutOfTimeError, Plans, Refused
from planner.searching.space import Space, least_axes
from planner.searching.weighing import Objective

SIZES = ("micro_batch_size", "sequence_length")
"""What is increased: a job needs no fewer tensors for more of it."""
MOST = 2**24
_USUAL_STEP = {"micro_batch_size": 1, "sequence_length": 256}

Progress = Callable[[str], None]


@dataclass(slots=True)
class Largest:
    """The answer: `value` is 0 where not even the smallest fits."""

    name: str
    step: int
    value: int = 0
    exact: Exact | None = None
    beyond: Exact | None = None
    """Of the next larger size, which does not fit."""
    planned: dict[int, Exact] = field(default_factory=dict)
    """Every size that a plan was made of."""
    stopped: str = ""
    """`time` or `interrupted`: then `value` is the largest that is known to fit, and larger ones may."""


def size_named(written: str, command: str = "max") -> str:
    """The size that a word means. Raises SpecError with the nearest name."""
    try:
        name = known_name(written)
    except SpecError:
        name = ""
    if name not in SIZES:
        raise SpecError(
            f"planner {command} does not know {written[:80]!a}" if not name else
            f"{name} has no largest value: more of it does not always take more memory",
            allowed=", ".join(SIZES),
            remedy=did_you_mean(written, SIZES) or "`planner search` looks for the best of other axes",
        )  # fmt: skip
    return name


def step_of(name: str, job: Job) -> int:
    """Sizes are multiples of this: for sequences what context and sequence parallelism divide, at least 256."""
    step = _USUAL_STEP[name]
    if name == "sequence_length":
        parallel = job.parallel
        parts = parallel.tp.degree * 2 * parallel.cp.degree
        while step % parts:
            step += _USUAL_STEP[name]
    return step


def largest(
    job: Job, name: str, plans: Plans, *, step: int = 0, most: int = MOST, progress: Progress = lambda _: None
) -> Largest:
    """The largest size, in steps, with which the job fits; everything else stays as it is. Raises SpecError where even
    the smallest cannot be planned."""
    if name == "sequence_length" and not job.train.sequence_length:
        raise SpecError("the job has no train.sequence_length: its model takes no tokens", allowed="micro_batch_size")
    run = _Halving(job, name, plans, progress, Largest(name, step or step_of(name, job)))
    try:
        run.find(most)
    except OutOfTimeError:
        run.result.stopped = "time"
    except KeyboardInterrupt:
        run.result.stopped = "interrupted"
    return run.finished()


def size_of(job: Job, name: str) -> int:
    """What the job says."""
    return micro_batch_size(job) if name == "micro_batch_size" else job.train.sequence_length or 0


def with_size(job: Job, name: str, size: int) -> Job:
    """The job with that size."""
    return apply(job, {trainer_axes.key_of(job, path_of(name)): size})


@dataclass(slots=True)
class _Halving:
    """Decides sizes, which are counted in steps."""

    job: Job
    name: str
    plans: Plans
    progress: Progress
    result: Largest
    ahead: dict[int, Future[Answers]] = field(default_factory=dict)
    """Plans that are being made of counts that will be wanted."""

    def find(self, most: int) -> None:
        """The largest that fits."""
        bound = self._largest_in_bound(most // self.result.step)
        if not bound:
            self._decide(1)  # the bound says that it exceeds; a plan says by how much
            return
        for count in range(self._largest_with_room(bound), 0, -1):
            if self._decide(count).fits:
                return
            self._begin(count - 1)

    def finished(self) -> Largest:
        result = self.result
        fitting = [size for size, exact in result.planned.items() if exact.fits]
        result.value = max(fitting, default=0)
        result.exact = result.planned.get(result.value)
        result.beyond = result.planned.get(result.value + result.step)
        return result

    def _largest_in_bound(self, most: int) -> int:
        """The largest count that the lower bound lets pass: it grows with the size."""

        def exceeds(count: int) -> bool:
            return lower_bound(self._job(count)).exceeds

        low, high = 0, 1
        while high <= most and not exceeds(high):
            low, high = high, high * 2
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if exceeds(middle) else (middle, high)
        return low

    def _largest_with_room(self, bound: int) -> int:
        """The largest count whose tensors there is room for. Planned are first the smallest and the job's own, then
        what a line through them says, and its neighbour."""
        low, high = 0, bound + 1
        own = size_of(self.job, self.name) // self.result.step
        second = min(max(2, own), bound)
        self._begin(second)
        if not self._has_room(1):
            return 0
        low = 1
        if second > low:
            low, high = (second, high) if self._has_room(second) else (low, second)
        while high - low > 1:
            guess = self._guess(low, high)
            if guess + 1 < high:
                self._begin(guess + 1)
            for count in (guess, guess + 1):
                if low < count < high:
                    low, high = (count, high) if self._has_room(count) else (low, count)
        return low

    def _guess(self, low: int, high: int) -> int:
        """Between them, where tensors reach the capacity if they grow as they did between the two largest known."""
        step, planned = self.result.step, self.result.planned
        known = sorted(size // step for size in planned if size // step <= low)
        if len(known) < 2:
            return (low + high) // 2
        one, two = known[-2:]
        exact = planned[two * step]
        growth = (exact.allocated_bytes - planned[one * step].allocated_bytes) / (two - one)
        if growth <= 0:
            return (low + high) // 2
        reached = two + int((exact.capacity_bytes - exact.allocated_bytes) / growth)
        return max(min(reached, high - 1), low + 1)

    def _has_room(self, count: int) -> bool:
        return not self._decide(count).surely_exceeds

    def _job(self, count: int) -> Job:
        return with_size(self.job, self.name, count * self.result.step)

    def _begin(self, count: int) -> None:
        """Where several plans are made at a time, the next one that will be wanted."""
        is_known = count in self.ahead or count * self.result.step in self.result.planned
        if self.plans.processes > 1 and count > 0 and not is_known:
            self.ahead[count] = self.plans.submit([self._job(count)], whole=True)

    def _decide(self, count: int) -> Exact:
        size = count * self.result.step
        if size in self.result.planned:
            return self.result.planned[size]
        job = self._job(count)
        fault = fault_of(job)
        if fault is not None:
            raise fault
        self.progress(f"planning {self.name} {size:,}, {len(self.result.planned)} planned so far")
        future = self.ahead.pop(count, None) or self.plans.submit([job], whole=True)
        (answer,) = future.result()
        if isinstance(answer, Refused):
            raise SpecError(
                f"{self.name} {size} cannot be planned: {answer.reason}", allowed="a job that can be planned"
            )
        self.result.planned[size] = answer
        return answer


MOST_GPUS = 4096


@dataclass(slots=True)
class Fewest:
    """The answer: `gpus` is 0 where none of the numbers that were tried is enough."""

    gpus: int = 0
    row: Row | None = None
    tried: dict[int, str] = field(default_factory=dict)
    """Numbers of GPUs that are not enough, and why."""
    closest: Row | None = None
    stopped: str = ""
    """`time` or `interrupted`: then smaller numbers than the answer were decided, and larger ones were not tried."""


def fewest(
    job: Job,
    plans: Plans,
    *,
    global_batch: int,
    per_node: int,
    most: int = MOST_GPUS,
    deadline: float = float("inf"),
    progress: Progress = lambda _: None,
) -> Fewest:
    """The fewest GPUs: numbers are tried in ascending order, and each is decided before the next."""
    answer = Fewest()
    for gpus in gpu_counts(most, per_node):

        def tell(what: str, gpus: int = gpus) -> None:
            progress(f"{gpus} GPUs: {what}")

        try:
            space = Space.varying(job, least_axes(job, gpus, min(gpus, per_node)), global_batch)
            result = search(
                space, plans, objective=Objective.MEMORY, top=1, time_left=deadline - time.monotonic(), any_fit=True,
                progress=tell,
            )  # fmt: skip
        except SpecError as error:
            answer.tried[gpus] = error.problem
            continue
        answer.stopped = result.stopped
        if result.rows:
            answer.gpus, answer.row = gpus, result.rows[0]
            return answer
        answer.closest = result.closest or answer.closest
        left = result.scales.left
        if not left:
            why = "parameters, optimizer state and what a forward saves are too much in every layout"
        elif result.stopped:
            why = f"undecided: {result.planned} of {left} candidates were planned"
        else:
            why = f"none of {left} candidates fits"
        answer.tried[gpus] = why
        if result.stopped:
            break
    return answer


def gpu_counts(most: int, per_node: int) -> Iterator[int]:
    """Numbers of GPUs that are tried, ascending: powers of two in a node, then whole nodes, of more than eight those
    that are a power of two or half as many again."""
    count = 1
    while count < min(per_node, most + 1):
        yield count
        count *= 2
    nodes = 1
    while nodes * per_node <= most:
        yield nodes * per_node
        power = 1 << (nodes.bit_length() - 1)
        nodes += 1 if nodes < 8 else power // 2
