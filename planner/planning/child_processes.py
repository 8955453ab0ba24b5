"""Plans the rank classes of a large job in several processes at a time.

A fork server loads PyTorch once; each of its children takes every n-th class. Whatever a child that was killed did not
bring to an end is done here.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from planner import cuda_on_paper
from planner.allocator.replay import replay
from planner.job.layout import Mesh, RankClass, rank_classes
from planner.planning import pipeline
from planner.planning.pipeline import PlannedClass, PlanningInputs, Progress
from planner.planning.trace_source import PRELOAD
from planner.runtime import messages, running
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import AnswerWriter, Task

FEWEST = 4
"""Rank classes of a job that is worth a second process: one takes as long to start as to plan one or two of them."""
MOST = 8
_NO_TIMELINE = replay(())
_MODULES = (
    "torch._dynamo",
    "torch._inductor.utils",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed._tools.mem_tracker",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "torch.nn.utils",
    "torch.testing._internal.distributed.fake_pg",
    "torch.utils.flop_counter",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
)
"""Of other projects, loaded by most traces besides what planner imports; a job's own are loaded by its child."""


def load_tracer() -> None:
    """Import what traces most jobs: sooner than all that some of them need."""
    from planner.tracing.spec import step_trace  # noqa: F401


def load() -> None:
    """Import what every plan needs, and register the paper GPU's kernels, in a process that then forks for each piece
    of work. No step is run: autograd's threads do not survive a fork."""
    load_tracer()
    from planner import paper
    from planner.training import folding, pipelined_loop  # noqa: F401
    from planner.training.models import transformers_models  # noqa: F401
    from planner.upstream import checking

    for name in _MODULES:
        with contextlib.suppress(ImportError):  # not in every supported torch, or not installed
            importlib.import_module(name)
    paper.prepare()
    checking.enforce()


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
        known = work.source.knows(work.job, [rank_class.representative for rank_class in classes])
        if several < 2 or len(classes) < FEWEST or known:
            return pipeline.plan_here(work, classes, progress)
        progress(f"planning {len(classes)} rank classes in {several} processes")
        planned = _plan_in_children(work, [range(len(classes))[first::several] for first in range(several)])
        return [
            planned[number]
            if number in planned
            else _without_unwanted(work, pipeline.plan_class(work, rank_class, progress))
            for number, rank_class in enumerate(classes)
        ]


def _plan_in_children(work: PlanningInputs, shares: Sequence[range]) -> dict[int, PlannedClass]:
    """What the children brought to an end, by number. Raises the first error that one of them reports."""
    server = cuda_on_paper.lasting_server(PRELOAD)

    def ask(share: range) -> dict[int, PlannedClass]:
        task = Task("planner.planning.child_processes:plan_share", (work, share))
        answer = running.run(task, UNLIMITED, server=server)
        messages.raise_failure(answer)
        # What else it answers says that its memory ran out: the rest is planned here.
        return {int(name): pickle.loads(content) for name, content in answer.parts.items() if name.isdecimal()}

    with ThreadPoolExecutor(len(shares)) as pool:
        return {number: planned for part in pool.map(ask, shares) for number, planned in part.items()}


def plan_share(argument: tuple[PlanningInputs, range], answer: AnswerWriter) -> None:
    """The child's side: a part for each class, by its number."""
    work, share = argument
    classes = rank_classes(Mesh.of(work.job.parallel))
    for number in share:
        planned = _without_unwanted(work, pipeline.plan_class(work, classes[number]))
        answer.write(str(number), pickle.dumps(planned, pickle.HIGHEST_PROTOCOL))


def _without_unwanted(work: PlanningInputs, planned: PlannedClass) -> PlannedClass:
    if work.keep_traces:
        return planned
    parts = tuple(
        replace(
            part,
            rank_trace=replace(part.rank_trace, trace=replace(part.rank_trace.trace, events=())),
            timeline=_NO_TIMELINE,
        )
        for part in planned.parts
    )
    return replace(planned, parts=parts, whole=False)
