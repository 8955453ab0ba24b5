"""Compiles the step of a job that asks for it, for the paper GPU that is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from planner.errors import TraceError
from planner.job.schema import Job
from planner.paper.recorder import Recorder


class Account(Protocol):
    """What compiling can say of itself."""

    def assumed(self) -> tuple[str, ...]:
        """What was assumed where a GPU would have been timed, as sentences."""


class NothingCompiled:
    """The account of a step that is not compiled."""

    def assumed(self) -> tuple[str, ...]:
        return ()


def as_planned(job: Job) -> Job:
    """The job whose step is traced: without torch.compile where it is to be planned as the eager one."""
    if job.train.compile is None or job.train.compile.planned_as != "eager":
        return job
    return replace(job, train=replace(job.train, compile=None))


@contextmanager
def compiling(job: Job, arch: str, recorder: Recorder) -> Iterator[Account]:
    """Inside, torch.compile compiles where the job asks for it.

    Raises TraceError for what cannot be compiled, and for a step in which nothing was compiled: a plan is never that of
    the eager step instead.
    """
    if job.train.compile is None:
        yield NothingCompiled()
        return
    # Whoever compiles nothing does not pay for the import of Dynamo and Inductor.
    from planner.paper import compiled

    with compiled.enable(arch, recorder, as_asked=True) as account:
        yield account
        if not account.graphs():
            raise TraceError(
                f"torch.compile captured nothing of the step ({', '.join(job.train.compile.scope)})",
                allowed="a step of which Dynamo captures graphs",
                remedy="delete it to plan the eager step",
                place="train.compile",
            )
