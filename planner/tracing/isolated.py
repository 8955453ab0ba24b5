"""A trace in a process of its own: for code that may loop, eat memory, or change what torch is.

The child reads a request from its standard input and writes the trace to its standard output, both plain JSON; what
the traced program prints goes to standard error. The parent watches time and memory and ends it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planner.errors import PlannerError, SpecError, TraceError
from planner.spec import bundle, loading
from planner.spec.job import Job
from planner.tracing import child_process, wire
from planner.tracing.child_process import resident_bytes
from planner.tracing.traced import Trace
from planner.units import GIB, show_bytes

_PROBLEM = 2
_ROOT = Path(__file__).parents[2]
_CHILD = "import sys; sys.path.append(sys.argv[1]); from planner.tracing import isolated; isolated.answer_request()"
"""Started with -P and planner last in the path: no file beside it, or where it is started, stands for a library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a traced program may take; `memory_bytes` is resident memory of the host."""

    seconds: float = 300.0
    memory_bytes: int = 12 * GIB
    processes: int = 256
    """The program's own, and all that it starts."""
    command: tuple[str, ...] = ()
    """Put in front of the child's command line: a sandbox, say. It has to pass its standard streams on."""


USUAL_LIMITS = Limits()


def trace_isolated(job: Job, rank: int = 0, target: str = "", limits: Limits = USUAL_LIMITS) -> Trace:
    """As `trace.trace`, in a child process.

    Raises SpecError for a program that takes more than its limits or ends its process, and what `trace` raises.
    """
    request = {"job": bundle.bundle(job), "rank": rank, "target": target, "seconds": limits.seconds}
    ended = child_process.run(
        [*limits.command, sys.executable, "-P", "-c", _CHILD, str(_ROOT)], request, _watch(limits, job.model.factory)
    )
    try:
        document = json.loads(ended.answer)
    except ValueError:  # it ended before it had answered, with whatever code
        raise _ended(ended.code, ended.last_line, job.model.factory) from None
    try:
        if ended.code != _PROBLEM:
            return wire.from_json(document)
        problem = _problem(document)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        # The program could write there itself: nothing is believed of what came.
        raise _ended(ended.code, "its answer is no trace", job.model.factory) from None
    raise problem


def _watch(limits: Limits, factory: str) -> Callable[[int], None]:
    deadline = time.monotonic() + limits.seconds

    def watch(child: int) -> None:
        if time.monotonic() > deadline:
            raise SpecError(
                f"{factory or 'the model'} was not traced within {limits.seconds:g} s",
                allowed=f"at most {limits.seconds:g} s from its start to the end of its step",
                remedy="see whether the factory loops or loads data; it has to return the module only",
                place="model.factory",
            )
        family = _family(child)
        if len(family) > limits.processes:
            raise SpecError(
                f"{factory or 'the model'} starts more than {limits.processes} processes",
                allowed="a callable that returns an nn.Module",
                remedy="start no processes in the factory",
                place="model.factory",
            )
        if sum(map(resident_bytes, family)) > limits.memory_bytes:
            raise SpecError(
                f"{factory or 'the model'} takes more than {show_bytes(limits.memory_bytes)} of the host's memory",
                allowed=f"at most {show_bytes(limits.memory_bytes)} resident",
                remedy="load no data in the factory, and build a large module under `with torch.device('cuda')`: "
                "on paper it takes no memory",
                place="model.factory",
            )

    return watch


def _family(process: int) -> list[int]:
    """The process and what came from it, but for what has left its family."""
    found = [process]
    for each in found:
        with contextlib.suppress(OSError, ValueError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def _ended(code: int, last_line: str, factory: str) -> SpecError:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return SpecError(
        f"{factory or 'the model'} ended its process with {how}: {last_line or 'without a word'}",
        allowed="a callable that returns an nn.Module",
        remedy="run the factory by itself and see where it ends",
        place="model.factory",
    )


def _problem(document: dict[str, str]) -> PlannerError:
    kinds = {"SpecError": SpecError, "TraceError": TraceError}
    kind = kinds.get(document.pop("kind"), PlannerError)
    return kind(document.pop("problem"), **document)


def answer_request() -> None:
    """The child's side; it does not return."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the program prints is no answer
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the paper GPU's address space would make a large core
    signal.alarm(math.ceil(request["seconds"]) + 5)  # for a parent that was killed and can end nobody
    try:
        from planner.tracing.trace import trace

        job = loading.load_bundle({**request["job"]})
        document = wire.to_json(trace(job, request["rank"], request["target"]))
        code = 0
    except PlannerError as error:
        document = {
            "kind": type(error).__name__, "problem": error.problem, "allowed": error.allowed,
            "remedy": error.remedy, "place": error.place,
        }  # fmt: skip
        code = _PROBLEM
    json.dump(document, answers)
    answers.flush()
    # Not the ordinary way out: threads or exit handlers of a foreign program could keep the process.
    os._exit(code)
