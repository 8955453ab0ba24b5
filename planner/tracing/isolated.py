"""Traces in a child process under limits and walls: for code that may loop, eat memory, or change torch."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from planner import cuda_on_paper
from planner.cuda_on_paper import PaperGpu
from planner.errors import SpecError
from planner.job.code_rules import ANY_CODE, CodeRules
from planner.job.schema import Job
from planner.runtime import messages, running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limit, LimitExceededError, Limits
from planner.runtime.messages import AnswerWriter, Task
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

_NEEDED = re.compile(
    r"(PLANNER_|PAPER_|PYTHON|PYTEST_|COV_|COVERAGE_|LC_|XDG_).*"
    r"|PATH|HOME|USER|LOGNAME|SHELL|TERM|COLUMNS|NO_COLOR|TZ|LANG|LANGUAGE|TMPDIR|TEMP|TMP|VIRTUAL_ENV|CONDA_PREFIX"
    r"|CC|CXX|CUDA_HOME|CUDA_PATH|LD_LIBRARY_PATH|LD_PRELOAD|TRITON_LIBCUDA_PATH"
    r"|TORCH_HOME|TORCHINDUCTOR_CACHE_DIR|TRITON_HOME|TRITON_CACHE_DIR|TRANSFORMERS_(CACHE|OFFLINE)"
    r"|HF_(HOME|HUB_CACHE|MODULES_CACHE|TOKEN|TOKEN_PATH|ENDPOINT|HUB_OFFLINE)"
    r"|((https?|all|no)_proxy|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE)"
)
"""Variables of a shell that say where things lie and how they are reached and shown. All others may decide what torch
and CUDA's libraries allocate (`CUBLAS_WORKSPACE_CONFIG`, torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp)."""
_ALWAYS = {"OMP_NUM_THREADS": "1"}
_lock = threading.Lock()
_put_aside: dict[str, str] = {}
_tracing = 0


def drop_shell_variables() -> Mapping[str, str]:
    """What this process had of variables that no spec has said, which it and those that it starts no longer have: the
    trace of a spec follows from the spec and the software, which are what it is stored under. The allocator's settings
    come in by `allocator.conf`."""
    dropped = {name: os.environ.pop(name) for name in list(os.environ) if not _NEEDED.fullmatch(name)}
    os.environ.update(_ALWAYS)
    return dropped


@contextmanager
def shell_put_aside() -> Iterator[None]:
    """Within it the variables that :func:`drop_shell_variables` drops are gone. Threads may share it: the last one puts
    them back."""
    global _tracing
    with _lock:
        _tracing += 1
        if _tracing == 1:
            _put_aside.update(drop_shell_variables())
    try:
        yield
    finally:
        with _lock:
            _tracing -= 1
            if not _tracing:
                for name in _ALWAYS:
                    os.environ.pop(name, None)
                os.environ.update(_put_aside)
                _put_aside.clear()


_TRACE = "trace"
_MODULE = "a callable that returns an nn.Module"


def trace_isolated(
    job: Job,
    rank: int = 0,
    isolation: Isolation = USUAL_ISOLATION,
    *,
    server: ForkServer | None = None,
) -> Trace:
    """As `job_program.trace`, in a child process: one that the `server` forks, or a fresh one.

    Raises FactoryNotAllowedError for code that may not be called, SpecError for a program that takes more than its
    limits or ends its process, and what `job_program.trace` raises.
    """
    limits, subject = isolation.limits, job.model.factory or "the model"
    if job.model.factory:
        isolation.code.refuse_name(job.model.factory, job.model.factory_path)
    task = Task("planner.tracing.isolated:answer_trace", (job, rank, isolation.code))
    with shell_put_aside():
        environment = {} if isolation.walls is not None else dict(os.environ)
        if server is None:
            gpu = job.cluster.gpu
            on_paper = PaperGpu(gpu.name, gpu.target, gpu.total_bytes, job.cluster.gpus_per_node)
            environment |= cuda_on_paper.start_variables() | cuda_on_paper.gpu_variables(on_paper)
        answer = running.run(task, limits, walls=isolation.walls, server=server, environment=environment)
    if (exceeded := messages.exceeded_limit(answer, limits)) is not None:
        raise _limit_error(exceeded, subject, compiles=job.train.compile is not None)
    error = messages.error_of(answer)
    if error is not None:
        raise error
    if answer.whole and (answer.exit_code or _TRACE not in answer.parts):
        if (fault := messages.fault_line(answer)) is not None:
            raise _error(f"{subject} broke its process: {fault}")
        raise _error(
            f"{subject} ended its process with {messages.ending(answer)}",
            remedy="run the factory by itself and see where it ends",
        )
    try:
        return rank_trace.loads(answer.parts.get(_TRACE, b"").decode())
    except ValueError:
        # The program could write there itself: nothing is believed of what came.
        how = f"exit code {answer.exit_code}: its answer is not a trace"
        raise _error(f"{subject} ended its process with {how}") from None


def answer_trace(argument: tuple[Job, int, CodeRules], answer: AnswerWriter) -> None:
    """The child's side: the trace as its one part. Raises what `job_program.trace` raises."""
    from planner.tracing import job_program
    from planner.training.models import build

    job, rank, rules = argument
    build.allow(rules)
    answer.write(_TRACE, rank_trace.dumps(job_program.trace(job, rank)).encode())


def _limit_error(exceeded: LimitExceededError, subject: str, *, compiles: bool) -> SpecError:
    limits, memory = exceeded.limits, show_bytes(exceeded.limits.memory_bytes)
    problem, allowed, remedy = {
        Limit.SECONDS: (
            f"{subject} was not traced within {limits.seconds:g} s",
            f"at most {limits.seconds:g} s from its start to the end of its step",
            "it is compiled, which takes long for large graphs: compile the blocks instead of the model, of which equal"
            " ones are compiled once; else see whether the factory loops or loads data"
            if compiles
            else "see whether the factory loops or loads data; it has to return the module only",
        ),
        Limit.TASKS: (
            f"{subject} starts more than {limits.tasks} processes and threads",
            _MODULE,
            "start no processes in the factory",
        ),
        Limit.ANSWER: (
            f"the trace of {subject} is larger than {show_bytes(limits.answer_bytes)}",
            "a step of some millions of allocations",
            "fewer layers, micro-batches or iterations",
        ),
        Limit.MEMORY: (
            f"{subject} takes more than {memory} of the host's memory",
            f"at most {memory} resident",
            "load no data in the factory, and build a large module under `with torch.device('cuda')`: on paper it takes"
            " no memory",
        ),
    }[exceeded.limit]
    return _error(problem, allowed=allowed, remedy=remedy)


def _error(problem: str, *, allowed: str = _MODULE, remedy: str = "") -> SpecError:
    return SpecError(problem, allowed=allowed, remedy=remedy, place="model.factory")
