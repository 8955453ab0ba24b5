"""Tasks of a tracing worker's child process: trace, judge and advise."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from planner.errors import PlannerError, ProgramError, SpecError, restored
from planner.job.layout import Mesh, rank_classes
from planner.job.masking import CommandMask, map_texts
from planner.job.schema import Job
from planner.planning.inputs import inputs_of
from planner.planning.plan import PlanningResult, plan_from_traces, plan_job, plan_program
from planner.planning.planned_classes import assign_ranks, parts_of_class
from planner.planning.trace_source import TraceSource
from planner.planning.without_compile import add_eager
from planner.report.statement import Plan, to_json
from planner.runtime.messages import AnswerWriter
from planner.searching.plan_advice import add_advice
from planner.service.orders import Order
from planner.tracing import rank_trace
from planner.tracing.isolated import Isolation
from planner.units import MIB, show_bytes

PLAN, TRACES, FURTHER, UNREADABLE = "plan", "traces", "further", "unreadable"
"""Parts of the answer, named as the fields of WorkerResult: a plan, traces as text by rank, ranks to be traced besides;
and that stored traces are damaged."""
MOST_STATEMENT_BYTES = MIB
"""Of a run, which the history keeps and everybody may read: one of 16 ranks and 30 iterations has 300 KiB."""


def make_plan(argument: tuple[Order, Isolation], answer: AnswerWriter) -> None:
    order, isolation = argument
    with _code_at_fault(order.spec):
        made = plan_job(order.spec, order.calibration, source=TraceSource(isolation))
    _answer_plan(order, made, isolation, answer)
    if not order.runs_code and order.spec.trainer is None:  # whose ranks' classes no later judge could tell
        texts = {ranks.rank_class.representative: rank_trace.dumps(ranks.trace) for ranks in made.traces}
        answer.write(TRACES, pickle.dumps(texts))


def trace_rank(argument: tuple[Job, int, Isolation], answer: AnswerWriter) -> None:
    job, rank, isolation = argument
    trace = TraceSource(isolation).trace_rank(job, rank)
    parts = [
        part.representative
        for rank_class in rank_classes(Mesh.of(job.parallel))
        if rank_class.representative == rank
        for part in parts_of_class(job, rank_class, trace)
    ]
    answer.write(FURTHER, pickle.dumps(tuple(parts[1:])))
    answer.write(TRACES, pickle.dumps({rank: rank_trace.dumps(trace)}))


def judge_traces(argument: tuple[Order, Mapping[int, str], Isolation], answer: AnswerWriter) -> None:
    """Answer the plan that follows from traces by representative; UNREADABLE if they are not those of the job."""
    order, texts, isolation = argument
    try:
        traces = assign_ranks(order.spec, {rank: rank_trace.loads(text) for rank, text in texts.items()})
    except (ValueError, KeyError):
        answer.write(UNREADABLE, b"")
        return
    with _code_at_fault(order.spec):
        made = plan_from_traces(order.spec, traces, order.calibration)
    _answer_plan(order, made, isolation, answer)


def run_program(order: Order, answer: AnswerWriter) -> None:
    """Run ranks of a program behind walls, one after the other, judge them, and answer the plan."""
    assert order.program is not None
    program = order.program
    asked = program.request
    work = inputs_of(
        asked.line, asked.command, asked.gpu, ranks=asked.ranks, steps=asked.steps, strict=asked.strict,
        limits=program.limits, calibration=order.calibration, walled=program.walled,
        host_memory_bytes=asked.host_memory_bytes, torch=asked.torch,
    )  # fmt: skip
    try:
        plan = plan_program(work).plan
    except MemoryError:
        raise
    except PlannerError as error:  # others read it too, in a warning of a hook
        mask = CommandMask(asked.command, asked.line.environment).mask
        raise restored(type(error), map_texts(vars(error), mask)) from None
    except Exception as error:  # what it says of its memory may contradict itself
        raise ProgramError(
            f"the program's records cannot be planned: {type(error).__name__}: {error}",
            allowed="a program that leaves planner's own modules alone",
            remedy="if it does, report this, and the program if you may",
            place=asked.line.program,
        ) from error
    named = replace(plan, plan_id=order.plan_id, trace_id=order.trace_id, metadata=asked.metadata)
    refuse_large(named)
    answer.write(PLAN, pickle.dumps(named))


def refuse_large(plan: Plan) -> None:
    if (size := len(json.dumps(to_json(plan)))) > MOST_STATEMENT_BYTES:
        raise ProgramError(
            f"what is to be said of the program takes {show_bytes(size)}, which is more than is kept",
            allowed=f"at most {show_bytes(MOST_STATEMENT_BYTES)} for a run",
            remedy="fewer steps or ranks in one request",
            place="program",
        )


def _answer_plan(order: Order, made: PlanningResult, isolation: Isolation, answer: AnswerWriter) -> None:
    """The plan as soon as it is known: what is said besides may take longer than there is time."""
    made = replace(made, plan=replace(made.plan, plan_id=order.plan_id, trace_id=order.trace_id))
    answer.write(PLAN, pickle.dumps(made.plan))
    source = TraceSource(isolation)
    if order.spec.train.compile is not None:
        made = add_eager(made, source)
        answer.write(PLAN, pickle.dumps(made.plan))
    try:
        advised = add_advice(made, source=source)
    except PlannerError:
        return
    if advised is not made:
        answer.write(PLAN, pickle.dumps(advised.plan))


@contextmanager
def _code_at_fault(job: Job) -> Iterator[None]:
    """Inside, whatever a trace of code of users breaks is that code's fault, and not one of planner."""
    try:
        yield
    except (PlannerError, MemoryError):
        raise
    except Exception as error:
        if not job.runs_apart:
            raise
        named, allowed = "the program of trainer", "files that its classes take"
        if job.model.factory:
            named, allowed = job.model.factory, "a callable that returns an nn.Module and leaves its process alone"
        raise SpecError(
            f"what {named} did makes no plan: {type(error).__name__}: {error}",
            allowed=allowed,
            place="model.factory" if job.model.factory else "trainer",
        ) from error
