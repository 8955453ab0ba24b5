"""The largest micro-batch or sequence of a job that fits, and the fewest GPUs on which it does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import SpecError
from planner.job.bound.lower_bound import lower_bound
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.job.trainer import micro_batch_size
from planner.planning.planned_classes import Progress
from planner.searching import trainer_axes
from planner.searching.axes import apply, fault_of, known_name, path_of
from planner.searching.engine import Row, SearchResult, search
from planner.searching.exact_plans import Exact, OutOfTimeError, Plans, Refused, plan_in_turn
from planner.searching.space import Space, least_axes
from planner.searching.weighing import Objective

SIZES = ("micro_batch_size", "sequence_length")
"""What is increased: a job needs no fewer tensors for more of it."""
MOST = 2**24
_USUAL_STEP = {"micro_batch_size": 1, "sequence_length": 256}


@dataclass(slots=True)
class Largest:
    """The answer: every size of which a plan was made."""

    name: str
    step: int
    planned: dict[int, Exact] = field(default_factory=dict)
    stopped: str = ""
    """`time` or `interrupted`: then `value` is the largest that is known to fit, and larger ones may."""

    @property
    def value(self) -> int:
        """0 where not even the smallest fits."""
        return max((size for size, exact in self.planned.items() if exact.fits), default=0)

    @property
    def exact(self) -> Exact | None:
        return self.planned.get(self.value)

    @property
    def beyond(self) -> Exact | None:
        """Of the next larger size, which does not fit."""
        return self.planned.get(self.value + self.step)


def size_named(written: str) -> str:
    """The size that a word means. Raises SpecError with the nearest name."""
    try:
        name = known_name(written)
    except SpecError:
        name = ""
    if name not in SIZES:
        raise SpecError(
            f"planner max does not know {written[:80]!a}" if not name else
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
    result = Largest(name, step or step_of(name, job))

    def job_of(count: int) -> Job:
        return with_size(job, name, count * result.step)

    counts = range(1, most // result.step + 1)
    in_bound = bisect_left(counts, True, key=lambda count: lower_bound(job_of(count)).exceeds)
    # Where the bound says that the smallest exceeds, a plan says by how much.
    order = _CountOrder(result, size_of(job, name) // result.step, max(in_bound, 1))
    begun: set[int] = set()

    def next_group() -> tuple[int, list[Job]] | None:
        count = next((count for count in order.wanted() if count not in begun), 0)
        if not count:
            return None
        begun.add(count)
        if (fault := fault_of(job_of(count))) is not None:
            raise fault
        progress(f"planning {name} {count * result.step:,}, {len(result.planned)} planned so far")
        return count, [job_of(count)]

    try:
        for count, (answer,) in plan_in_turn(plans, next_group, whole=True):
            size = count * result.step
            if isinstance(answer, Refused):
                raise SpecError(
                    f"{name} {size} cannot be planned: {answer.reason}", allowed="a job that can be planned"
                )
            result.planned[size] = answer
            if not order.wanted():
                break
    except OutOfTimeError:
        result.stopped = "time"
    except KeyboardInterrupt:
        result.stopped = "interrupted"
    return result


def size_of(job: Job, name: str) -> int:
    """What the job says."""
    return micro_batch_size(job) if name == "micro_batch_size" else job.train.sequence_length or 0


def with_size(job: Job, name: str, size: int) -> Job:
    """The job with that size."""
    return apply(job, {trainer_axes.key_of(job, path_of(name)): size})


@dataclass(slots=True)
class _CountOrder:
    """In which order sizes, counted in steps, are planned until the largest that fits is known."""

    result: Largest
    own: int
    """Of the job."""
    in_bound: int
    """The largest that the lower bound lets pass."""

    def wanted(self) -> list[int]:
        """What is planned next, and what will be wanted after that if it has room; nothing where the answer is known.

        First the largest is found whose tensors there is room for: from the smallest and the job's own by a line
        through them. From there downwards the first that fits is the answer, whatever the allocator adds.
        """
        known = {size // self.result.step: exact for size, exact in self.result.planned.items()}
        second = min(max(2, self.own), self.in_bound)
        if 1 not in known or (second not in known and not known[1].surely_exceeds):
            return [1, second]
        high = min((count for count, exact in known.items() if exact.surely_exceeds), default=self.in_bound + 1)
        with_room = sorted(count for count in known if count < high)
        low = max(with_room, default=0)
        if high - low > 1:
            guess = self._guess(known, with_room[-2:], high)
            return [guess, min(guess + 1, high - 1)]
        largest = next((count for count in range(low, 0, -1) if count not in known or known[count].fits), 0)
        return [] if largest in (0, *known) else [largest]

    def _guess(self, known: Mapping[int, Exact], with_room: Sequence[int], high: int) -> int:
        """Where tensors reach the capacity if they grow as they did between the two largest that have room."""
        low = with_room[-1]
        exact, grown = known[low], known[low].allocated_bytes - known[with_room[0]].allocated_bytes
        if grown <= 0:
            return (low + high) // 2
        left = (exact.capacity_bytes - exact.allocated_bytes) * (low - with_room[0]) // grown
        return max(min(low + left, high - 1), low + 1)


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
                space, plans, objective=Objective.MEMORY, top=1, until=deadline, any_fit=True,
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
        answer.tried[gpus] = _why_none(result)
        if result.stopped:
            break
    return answer


def _why_none(result: SearchResult) -> str:
    left = result.scales.left
    if not left:
        return "parameters, optimizer state and what a forward saves are too much in every layout"
    if result.stopped:
        return f"undecided: {result.planned} of {left} candidates were planned"
    return f"none of {left} candidates fits"


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
