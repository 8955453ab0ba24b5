"""What a process that plans is given and answers, the ids of both, and whether code of users is accepted."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from planner.errors import PlannerError
from planner.job.code_rules import CodeRules
from planner.job.json_text import canonical_json
from planner.job.launching.line import LaunchLine
from planner.job.loading import bundle
from planner.job.masking import has_secrets
from planner.job.schema import Gpu, Job
from planner.planning import identity
from planner.report.statement import Plan
from planner.runtime.limits import LimitExceededError, Limits
from planner.runtime.walled_program import WalledProgram
from planner.runtime.walls import Walls
from planner.service.errors import ProgramNotAllowedError
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings, split_list
from planner.tracing.isolated import Isolation
from planner.tracing.program.rank_process import USUAL_LIMITS
from planner.truth.calibration.interval import Calibration

START_SECONDS = 30.0
"""Beyond the limit of code of users: processes of its own have to start, and to be ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What is to be run. Of `folder` (absolute, without links) and `tarball` one is there."""

    line: LaunchLine
    command: tuple[str, ...]
    gpu: Gpu
    ranks: str
    steps: int
    strict: bool
    host_memory_bytes: int = 0
    metadata: Mapping[str, str]
    folder: str = ""
    tarball: bytes = b""
    torch: str = ""
    tenant: str = ""
    """A digest of the token that its caller shows; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalledRun:
    """A program as it is run: behind walls, within limits."""

    request: RunRequest
    walled: WalledProgram
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The job of a spec, or a program, to be planned under a calibration, with the names that its trace and its plan
    will have."""

    calibration: Calibration
    trace_id: str
    plan_id: str
    job: Job | None = None
    program: WalledRun | None = None

    @property
    def runs_code(self) -> bool:
        """Whether it brings code, which may be other code tomorrow under the same name."""
        return self.job is None or bool(self.job.model.factory)

    @property
    def tenant(self) -> str:
        """Of a program; specs are everybody's."""
        return self.program.request.tenant if self.program is not None else ""

    @property
    def torch(self) -> str:
        """The release that it runs with; empty: the service's own."""
        if self.program is not None:
            return self.program.request.torch
        return self.spec.software.torch

    @property
    def spec(self) -> Job:
        """The job of an order that is not of a program."""
        assert self.job is not None
        return self.job

    def seconds(self, trace_seconds: float) -> float:
        """What a worker may take for a call of it; `trace_seconds` are those of a trace of a spec."""
        if self.program is not None:  # all of its ranks together
            return self.program.limits.seconds + START_SECONDS
        return job_seconds(self.spec, trace_seconds)


def job_seconds(job: Job, trace_seconds: float) -> float:
    """What a worker may take for a trace of a spec, with the start of the process that runs it."""
    return trace_seconds + (START_SECONDS if job.runs_apart else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    text: str
    stored: bool = True
    """Whether the history has it; False: it could not be reached, and the plan is known to its caller only."""


@dataclass(frozen=True, slots=True)
class PlanRefused:
    error: PlannerError


Outcome = PlanMade | PlanRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """What a worker brought to an end before it was done, or was ended for exceeding a limit."""

    plan: Plan | None = None
    traces: Mapping[int, str] = field(default_factory=dict)
    further: tuple[int, ...] = ()
    """Ranks of a traced class that have to be traced as well: their part of what is split is of another size."""
    exceeded: LimitExceededError | None = None


class PlanMaker(Protocol):
    """Whoever makes plans: the one that all replicas share, or in its place whatever a test needs."""

    async def make(self, order: Order, seconds: float | None, keep: bool) -> Outcome | None:
        """The plan; None if it is not ready after `seconds`.

        With `keep` the work goes on when nobody waits any more; without, it ends then, also if this is cancelled.
        """

    async def end_run(self, plan_id: str) -> bool:
        """End the run of this id, with its processes, if it is being made or waits; whether there was one."""


def refuse_code(job: Job, settings: Settings) -> None:
    if job.model.factory:
        _code_rules(settings).refuse_name(job.model.factory, job.model.factory_path)


def refuse_programs(settings: Settings) -> None:
    if not settings.programs:
        raise ProgramNotAllowedError(
            "this service runs no programs of its users",
            allowed="specs (POST /v1/plans)",
            remedy="run it with the command line (planner run), or ask the operator for PLANNER_PROGRAMS",
        )


def code_isolation(settings: Settings) -> Isolation:
    readable = (str(Path(settings.factory_folder).resolve()),) if settings.factory_folder else ()
    return Isolation(
        limits=Limits(seconds=settings.trace_seconds, memory_bytes=settings.trace_memory_bytes),
        walls=Walls(readable=readable, as_root=settings.factories_as_root),
        code=_code_rules(settings),
    )


def program_walls(settings: Settings) -> Walls:
    """Around programs, and around the scripts that launch them."""
    readable = tuple(str(Path(folder).resolve()) for folder in split_list(settings.program_data))
    return Walls(readable=readable, as_root=settings.factories_as_root, place="program")


def describe_walls(settings: Settings) -> str:
    """What the operator has to know of the sandbox for code of users on this node; empty where it is whole, or not
    needed."""
    if not (settings.factories or settings.programs):
        return ""
    walls = Walls(as_root=settings.factories_as_root, place="model.factory" if settings.factories else "program")
    refusal = walls.refusal()
    return f"{refusal.problem}; change: {refusal.remedy}" if refusal is not None else walls.weakness()


def _code_rules(settings: Settings) -> CodeRules:
    return CodeRules(settings.factory_patterns, settings.factory_folder)


def build_run_order(
    request: RunRequest, calibration: Calibration, settings: Settings, key: bytes, torches: TorchVersions = ONLY_OWN
) -> Order:
    """The program as it is ordered. What lies in a folder may be another program tomorrow, under the same name.

    Its ids are known to everybody, and its command may have secrets: with `key` nobody else can try which command has
    these ids, and nobody with another token can have the service try.
    """
    limits = Limits(
        seconds=settings.program_seconds,
        memory_bytes=settings.trace_memory_bytes,
        tasks=USUAL_LIMITS.tasks,
        answer_bytes=USUAL_LIMITS.answer_bytes,
    )
    parts = {
        "files": hashlib.sha256(request.tarball).hexdigest() if request.tarball else request.folder,
        "command": list(request.command),
        "tenant": request.tenant,
        "gpu": asdict(request.gpu),
        "ranks": request.ranks,
        "steps": request.steps,
        "strict": request.strict,
        "limits": asdict(limits),
        "readable": settings.program_data,
        **identity.run_scope(torches.nearest(request.torch).versions),
        **({"host_memory": request.host_memory_bytes} if request.host_memory_bytes else {}),
        **({"runs torch": request.torch} if request.torch else {}),
    }
    trace_id = "run-" + _seal(key, canonical_json(parts))
    walled = WalledProgram(walls=program_walls(settings), folder=request.folder, tarball=request.tarball)
    return Order(
        program=WalledRun(request=request, walled=walled, limits=limits),
        calibration=calibration,
        trace_id=trace_id,
        plan_id=identity.plan_id(trace_id, identity.provenance_of(calibration)),
    )


def build_order(job: Job, calibration: Calibration, key: bytes, torches: TorchVersions = ONLY_OWN) -> Order:
    """The job as it is ordered; no time is lost on it: a millisecond. Metadata are no part of the names.

    They are those that the command line gives, except for a job with secrets: see :func:`build_run_order`.
    """
    versions, provenance = torches.nearest(job.software.torch).versions, identity.provenance_of(calibration)
    trace_id = identity.trace_id_of(job, versions)
    plan_id = identity.plan_id_of(job, provenance, versions)
    if has_secrets(canonical_json(bundle(job))):
        trace_id, plan_id = _seal(key, trace_id), identity.plan_id(_seal(key, plan_id), provenance)
    return Order(job=job, calibration=calibration, trace_id=trace_id, plan_id=plan_id)


def scope_search(job: Job, scope: str, key: bytes) -> str:
    """What decides the answer of a search besides what is asked for, and its id: see :func:`build_run_order`."""
    return _seal(key, scope) if has_secrets(canonical_json(bundle(job))) else scope


def _seal(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
