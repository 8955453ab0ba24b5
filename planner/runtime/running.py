"""Runs a task in a child: starts it, watches it, returns its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from planner.runtime.cgroup import Cgroup
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import Limits
from planner.runtime.spawning import spawn
from planner.runtime.supervision import Process, supervise
from planner.runtime.task import Answer, Task
from planner.runtime.walls import Walls

USUAL_LIMITS = Limits()


def run(
    task: Task,
    limits: Limits = USUAL_LIMITS,
    *,
    server: ForkServer | None = None,
    walls: Walls | None = None,
    environment: Mapping[str, str] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Run the task in a child process and wait for its end. To be called from a thread that stays until then.

    With a `server` the child is forked by it; else it is a fresh interpreter, behind `walls` if they are given, with
    this `environment` (default: this process's own; behind walls it is added to theirs). Raises WallsError where walls
    are wanted and cannot be had, ServerLostError if there is no server to be had.
    """
    group = Cgroup.create(limits)
    try:
        process = _start_process(task, limits, server, walls, environment)
    except BaseException:
        if group is not None:
            group.kill()
        raise
    if group is not None and not group.add(process.pid):
        group.kill()
        group = None
    return replace(supervise(process, limits, group=group, stopped=stopped), is_foreign=walls is not None)


def _start_process(
    task: Task,
    limits: Limits,
    server: ForkServer | None,
    walls: Walls | None,
    environment: Mapping[str, str] | None,
) -> Process:
    if walls is not None:
        with walls.prepare_start(limits) as prepared:
            return spawn(
                task,
                front=prepared.command,
                environment={**prepared.environment, **(environment or {})},
                descriptors=prepared.descriptors,
            )
    if server is not None:
        return server.fork(task)
    return spawn(task, environment=environment)
