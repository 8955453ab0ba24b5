"""Decides whether a job that brings code (`model.factory`), or a program, is accepted, and how it is isolated."""

from __future__ import annotations

from pathlib import Path

from planner.job.code_rules import CodeRules
from planner.job.schema import Job
from planner.running.rank_process import USUAL_LIMITS
from planner.running.walled_program import WalledProgram
from planner.runtime.limits import Limits
from planner.runtime.walls import Walls
from planner.service.orders import RunRequest
from planner.service.service_errors import ProgramNotAllowedError
from planner.settings import Settings, split_list
from planner.tracing.isolation import Isolation


def refuse_code(job: Job, settings: Settings) -> None:
    """Raises FactoryNotAllowedError for a factory that the settings do not name, or in a folder that they do not."""
    if job.model.factory:
        _code_rules(settings).refuse_name(job.model.factory, job.model.factory_path)


def refuse_programs(settings: Settings) -> None:
    """Raises ProgramNotAllowedError where the settings do not let whole programs be run."""
    if not settings.programs:
        raise ProgramNotAllowedError(
            "this service runs no programs of its users",
            allowed="specs (POST /v1/plans)",
            remedy="run it with the command line (planner run), or ask the operator for PLANNER_PROGRAMS",
        )


def walled_program(request: RunRequest, settings: Settings) -> WalledProgram:
    """The program's files, and the walls behind which it is run."""
    readable = tuple(str(Path(each).resolve()) for each in split_list(settings.program_data))
    walls = Walls(readable=readable, as_root=settings.factories_as_root)
    return WalledProgram(walls=walls, folder=request.folder, tarball=request.tarball)


def program_limits(settings: Settings) -> Limits:
    """For one rank."""
    return Limits(
        seconds=settings.program_seconds,
        memory_bytes=settings.trace_memory_bytes,
        tasks=USUAL_LIMITS.tasks,
        answer_bytes=USUAL_LIMITS.answer_bytes,
    )


def code_isolation(settings: Settings) -> Isolation:
    """The limits and walls within which such code is traced."""
    readable = (str(Path(settings.factory_folder).resolve()),) if settings.factory_folder else ()
    return Isolation(
        limits=Limits(seconds=settings.trace_seconds, memory_bytes=settings.trace_memory_bytes),
        walls=Walls(readable=readable, as_root=settings.factories_as_root),
        code=_code_rules(settings),
    )


def _code_rules(settings: Settings) -> CodeRules:
    return CodeRules(settings.factory_patterns, settings.factory_folder)
