"""Decides whether a job that brings code (`model.factory`), or a program, is accepted, and how it is isolated."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from planner.job.schema import Job
from planner.running.rank_process import USUAL_LIMITS
from planner.running.walled_program import WalledProgram
from planner.runtime.limits import Limits
from planner.runtime.walls import Walls
from planner.service.run_requests import RunRequest
from planner.service.service_errors import FactoryNotAllowedError, ProgramNotAllowedError
from planner.settings import Settings, split_list
from planner.tracing.isolation import Isolation


def refuse_code(job: Job, settings: Settings) -> None:
    """Raises FactoryNotAllowedError for a factory that the settings do not name, or in a folder that they do not."""
    if not job.model.factory:
        return
    patterns = settings.factory_patterns
    if not patterns:
        raise FactoryNotAllowedError(
            "this service runs no code of its users",
            allowed="model.hf_config or model.decoder",
            remedy="plan it with the command line, or ask the operator to name it in PLANNER_FACTORIES",
            place="model.factory",
        )
    if not any(_matches(job.model.factory, pattern) for pattern in patterns):
        raise FactoryNotAllowedError(
            f"{job.model.factory:.200} is not among the factories that this service runs",
            allowed=", ".join(patterns),
            remedy="plan it with the command line, or ask the operator to name it in PLANNER_FACTORIES",
            place="model.factory",
        )
    folder, allowed = job.model.factory_path, settings.factory_folder
    if folder and not (allowed and Path(folder).resolve().is_relative_to(Path(allowed).resolve())):
        raise FactoryNotAllowedError(
            f"{folder!r:.200} is no folder in which this service looks for code",
            allowed=allowed or "no folder; modules that are installed",
            remedy="leave it out, or ask the operator to set PLANNER_FACTORY_FOLDER",
            place="model.factory_path",
        )


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
        factories=settings.factory_patterns,
    )


def _matches(factory: str, pattern: str) -> bool:
    """A pattern without a colon is one of modules."""
    name = factory if ":" in pattern else factory.partition(":")[0]
    return fnmatchcase(name, pattern)
