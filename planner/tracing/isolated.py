"""Traces in a child process under limits and walls: for code that may loop, eat memory, or change torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.errors import SpecError
from planner.job.code_rules import ANY_CODE, CodeRules
from planner.job.schema import Job
from planner.runtime import messages, running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.messages import MEMORY, Answer, AnswerWriter, Task
from planner.runtime.walls import Walls
from planner.tracing import rank_trace
from planner.tracing.rank_trace import Trace
from planner.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """For one process of a factory. On a user's own machine their code runs with limits alone."""

    limits: Limits = field(default_factory=Limits)
    walls: Walls | None = None
    code: CodeRules = ANY_CODE
    """Which factories may be called there."""


USUAL_ISOLATION = Isolation()


_TRACE = "trace"
_PLACE = "model.factory"
_COMPILES_LONG = (
    "it is compiled, which takes long for large graphs: compile the blocks instead of the model, of which equal ones"
    " are compiled once; else see whether the factory loops or loads data"
)


def trace_isolated(
    job: Job,
    rank: int = 0,
    target: str = "",
    isolation: Isolation = USUAL_ISOLATION,
    *,
    server: ForkServer | None = None,
) -> Trace:
    """As `trace.trace`, in a child process: one that the `server` forks, or a fresh one.

    Raises FactoryNotAllowedError for code that may not be called, SpecError for a program that takes more than its
    limits or ends its process, and what `trace` raises.
    """
    limits = isolation.limits
    if job.model.factory:
        isolation.code.refuse_name(job.model.factory, job.model.factory_path)
    task = Task("planner.tracing.isolated:answer_trace", (job, rank, target, isolation.code))
    answer = running.run(task, limits, walls=isolation.walls, server=server)
    if isinstance(answer.exceeded, LimitExceededError):
        raise _limit_error(answer.exceeded, job)
    if MEMORY in answer.parts:
        raise _limit_error(LimitExceededError(Limit.MEMORY, limits), job)
    error = messages.error_of(answer)
    if error is not None:
        raise error
    if answer.whole and (answer.exit_code or _TRACE not in answer.parts):
        raise _ended_error(answer, job)
    try:
        return rank_trace.loads(answer.parts.get(_TRACE, b"").decode())
    except ValueError:
        # The program could write there itself: nothing is believed of what came.
        how = f"exit code {answer.exit_code}: its answer is no trace"
        raise _error(f"{_subject(job)} ended its process with {how}") from None


def answer_trace(argument: tuple[Job, int, str, CodeRules], answer: AnswerWriter) -> None:
    """The child's side: the trace as its one part. Raises what `trace` raises."""
    from planner.tracing.spec.step_trace import trace
    from planner.training.models import build

    job, rank, target, rules = argument
    build.allow(rules)
    answer.write(_TRACE, rank_trace.dumps(trace(job, rank, target)).encode())


def _limit_error(exceeded: LimitExceededError, job: Job) -> SpecError:
    limits = exceeded.limits
    match exceeded.limit:
        case Limit.SECONDS:
            return _error(
                f"{_subject(job)} was not traced within {limits.seconds:g} s",
                allowed=f"at most {limits.seconds:g} s from its start to the end of its step",
                remedy=_COMPILES_LONG
                if job.train.compile
                else "see whether the factory loops or loads data; it has to return the module only",
            )
        case Limit.TASKS:
            return _error(
                f"{_subject(job)} starts more than {limits.tasks} processes and threads",
                remedy="start no processes in the factory",
            )
        case Limit.ANSWER:
            return _error(
                f"the trace of {_subject(job)} is larger than {show_bytes(limits.answer_bytes)}",
                allowed="a step of some millions of allocations",
                remedy="fewer layers, micro-batches or iterations",
            )
        case Limit.MEMORY:
            return _error(
                f"{_subject(job)} takes more than {show_bytes(limits.memory_bytes)} of the host's memory",
                allowed=f"at most {show_bytes(limits.memory_bytes)} resident",
                remedy="load no data in the factory, and build a large module under `with torch.device('cuda')`: "
                "on paper it takes no memory",
            )


def _ended_error(answer: Answer, job: Job) -> SpecError:
    fault = messages.fault_line(answer)
    if fault is not None:
        return _error(f"{_subject(job)} broke its process: {fault}")
    return _error(
        f"{_subject(job)} ended its process with {messages.ending(answer)}",
        remedy="run the factory by itself and see where it ends",
    )


def _subject(job: Job) -> str:
    return job.model.factory or "the model"


def _error(problem: str, *, allowed: str = "a callable that returns an nn.Module", remedy: str = "") -> SpecError:
    return SpecError(problem, allowed=allowed, remedy=remedy, place=_PLACE)
