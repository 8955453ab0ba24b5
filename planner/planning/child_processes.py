"""Plans the rank classes of a large job in several processes at a time.

A fork server loads PyTorch once; each of its children takes every n-th class. Whatever a child that was killed did not
bring to an end is done here.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from planner.allocator.replay import replay
from planner.job.layout import Mesh, RankClass, rank_classes
from planner.planning import pipeline
from planner.planning.pipeline import PlannedClass, PlanningInputs, Progress
from planner.planning.preload import PRELOAD
from planner.runtime import messages, running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import AnswerWriter, Task

FEWEST = 4
"""Rank classes of a job that is worth a second process: one takes as long to start as to plan one or two of them."""
MOST = 8
_NO_TIMELINE = replay(())


def usable() -> int:
    """How many processes of this kind the machine has room for."""
    return min(len(os.sched_getaffinity(0)), MOST)


@dataclass(frozen=True, slots=True)
class ChildProcesses:
    """An executor: at most so many processes, and none for a job with few rank classes."""

    most: int

    def __call__(
        self, work: PlanningInputs, classes: Sequence[RankClass], progress: Progress
    ) -> Sequence[PlannedClass]:
        several = min(self.most, len(classes) // 2)
        known = work.source.knows(work.job, [each.representative for each in classes])
        if several < 2 or len(classes) < FEWEST or known:
            return pipeline.plan_here(work, classes, progress)
        progress(f"planning {len(classes)} rank classes in {several} processes")
        found = _plan_in_children(work, [range(len(classes))[first::several] for first in range(several)])
        return [
            found[number] if number in found else _without_unwanted(work, pipeline.plan_class(work, each, progress))
            for number, each in enumerate(classes)
        ]


def _plan_in_children(work: PlanningInputs, shares: Sequence[range]) -> dict[int, PlannedClass]:
    """What the children brought to an end, by number. Raises the first error that one of them reports."""
    server = ForkServer(PRELOAD)

    def ask(share: range) -> dict[int, PlannedClass]:
        task = Task("planner.planning.child_processes:plan_share", (work, share))
        answer = running.run(task, UNLIMITED, server=server)
        messages.raise_failure(answer)
        return {int(name): pickle.loads(content) for name, content in answer.parts.items()}

    try:
        with ThreadPoolExecutor(len(shares)) as pool:
            return {number: each for found in pool.map(ask, shares) for number, each in found.items()}
    finally:
        server.close()


def plan_share(argument: tuple[PlanningInputs, range], answer: AnswerWriter) -> None:
    """The child's side: a part for each class, by its number."""
    work, share = argument
    classes = rank_classes(Mesh.of(work.job.parallel))
    for number in share:
        found = _without_unwanted(work, pipeline.plan_class(work, classes[number]))
        answer.write(str(number), pickle.dumps(found, pickle.HIGHEST_PROTOCOL))


def _without_unwanted(work: PlanningInputs, found: PlannedClass) -> PlannedClass:
    if work.keep_traces:
        return found
    traces = tuple(replace(each, trace=replace(each.trace, events=())) for each in found.traces)
    judgements = tuple((each, _NO_TIMELINE) for each, _ in found.judgements)
    return replace(found, traces=traces, judgements=judgements, whole=False)
