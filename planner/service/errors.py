"""Errors of a service that did not plan a job now, or does not plan it at all."""

from __future__ import annotations

from planner.errors import PlannerError
from planner.runtime.limits import Limit, LimitExceededError
from planner.units import show_bytes


class ServiceError(PlannerError):
    """The service cannot do what was asked."""


class StartError(ServiceError):
    """The service, or the Ray below it, does not come up on this machine now."""


class BusyError(ServiceError):
    """More jobs wait already than are let wait; `retry_after_seconds` is when it is worth while to ask again."""

    def __init__(
        self, problem: str, *, allowed: str = "", remedy: str = "", place: str = "", retry_after_seconds: int = 1
    ) -> None:
        super().__init__(problem, allowed=allowed, remedy=remedy, place=place)
        self.retry_after_seconds = retry_after_seconds


class DeadlineError(ServiceError):
    """The plan was not ready within the time that its caller gave it."""


class TraceLimitError(ServiceError):
    """The trace takes more time or memory than one job may take here: the same job will not do better later."""


class WorkerLostError(ServiceError):
    """The process that traced the job died, twice, or none can be started: the same job may succeed later."""


class RunEndedError(ServiceError):
    """The run was ended by a request (DELETE) before it was done."""


class ProgramNotAllowedError(ServiceError):
    """Whoever runs this service has not allowed programs, or not from that folder."""


class ProgramCrashedError(ServiceError):
    """The program ended with an error of its own; `traceback` is what Python said of it."""

    def __init__(self, problem: str, traceback: str, **parts: str) -> None:
        super().__init__(problem, **parts)
        self.traceback = traceback


_REMEDY = (
    "fewer layers, micro-batches (train.gradient_accumulation_steps) or iterations: the figures of many micro-batches "
    "are those of a few"
)


def trace_limit_error(exceeded: LimitExceededError, run_seconds: float | None = None) -> TraceLimitError:
    """The error of a job whose trace exceeded a limit of the service, or of a run, whose ranks may take `run_seconds`
    together."""
    limits, place, remedy = exceeded.limits, "job", _REMEDY
    match exceeded.limit:
        case Limit.SECONDS if run_seconds is not None:
            problem = f"the ranks of the program were not all run within {run_seconds:g} s"
            allowed = f"at most {run_seconds:g} s for all ranks of a run together (PLANNER_PROGRAM_SECONDS)"
            place, remedy = "ranks", "fewer ranks or steps in one request"
        case Limit.SECONDS:
            problem = f"the job was not traced within {limits.seconds:g} s"
            allowed = f"at most {limits.seconds:g} s for a trace"
        case Limit.MEMORY:
            problem = f"the trace takes {show_bytes(round(exceeded.used))} of this machine's memory, which is too much"
            allowed = f"{show_bytes(limits.memory_bytes)} (PLANNER_TRACE_MEMORY_BYTES)"
        case Limit.TASKS:
            problem, allowed = "the trace starts too many processes and threads", f"at most {limits.tasks}"
        case Limit.ANSWER:
            problem = "the trace of the job is too large"
            allowed = f"at most {show_bytes(limits.answer_bytes)} of text"
    return TraceLimitError(problem, allowed=allowed, remedy=remedy, place=place)
