"""Micro-batches of an accumulation that are told of rather than run: the same events, whatever there is around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Any

import pytest

import planner.paper  # noqa: F401
from planner.allocator.replay import replay, replay_until_settled
from planner.allocator.rules import Rules
from planner.events import Alloc, Event, Free, Keep, Repeat, Role, rename_blocks
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import (
    Adapter,
    Cluster,
    Decoder,
    DpReplicate,
    DpShard,
    Gpu,
    Job,
    Model,
    Parallel,
    Recompute,
    Tp,
    Train,
)
from planner.planning import judging
from planner.planning.judging import JudgedRank, RankTrace
from planner.report.statement import RankClassStatement
from planner.step_work import Launch, LaunchKind
from planner.tracing import job_program as tracing
from planner.tracing.rank_trace import Trace
from planner.training.loop import Loop
from planner.truth.calibration.interval import Calibration

DECODER = Decoder(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=300)
MANY = 8
STEPS = (1, 2, 3, 4, MANY, 16)


def job(parallel: Parallel, *, adapter: Adapter | None = None, **train: Any) -> Job:
    return Job(
        model=Model(decoder=DECODER, adapter=adapter),
        train=Train(**{"micro_batch_size": 1, "sequence_length": 32, "gradient_clipping": 1.0, **train}),
        parallel=parallel,
        cluster=Cluster(gpus_per_node=Mesh.of(parallel).world_size, gpu=Gpu(total_bytes=80 << 30, arch="sm_90")),
    )


def accumulating(of: Job, steps: int) -> Job:
    return dataclasses.replace(of, train=dataclasses.replace(of.train, gradient_accumulation_steps=steps))


def replicated(**keys: Any) -> Parallel:
    return Parallel(dp_replicate=DpReplicate(degree=2, **keys))


def sharded(**keys: Any) -> Parallel:
    return Parallel(dp_shard=DpShard(degree=4, **keys))


CASES = {
    "alone": job(Parallel()),
    "alone, gradients kept": job(Parallel(), zero_grad_set_to_none=False, iterations=3),
    "alone, scaled": job(Parallel(), precision="fp16_autocast"),
    "replicated": job(replicated()),
    "replicated, reduced each time": job(replicated(no_sync=False)),
    "replicated, views": job(replicated(gradient_as_bucket_view=True), precision="bf16_autocast"),
    # torch refuses it under no_sync
    "replicated, static": job(replicated(arguments={"static_graph": True}, no_sync=False)),
    "replicated, unused": job(replicated(arguments={"find_unused_parameters": True}, no_sync=False)),
    "sharded": job(sharded(), precision="fsdp_mixed", recompute=Recompute(mode="full")),
    "sharded, gathered": job(sharded(reshard_after_forward=False)),
    "sharded, not reduced": job(sharded(no_sync=True), precision="fsdp_mixed"),
    "sharded and replicated": job(
        Parallel(dp_replicate=DpReplicate(degree=2), dp_shard=DpShard(degree=2)), precision="fsdp_mixed"
    ),
    "split": job(Parallel(tp=Tp(degree=2, sequence_parallel=True))),
}
NEVER_FOLD = ("replicated, power",)


@cache
def traced(name: str, steps: int, *, shortened: bool) -> Trace:
    """Once for all tests: they change nothing of it."""
    return tracing.trace(accumulating(CASES[name], steps), shortened=shortened)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", CASES)
def test_every_event_is_as_if_all_had_been_run(name: str, steps: int) -> None:
    tracing.trace(CASES[name])  # what a process does the first time only is no part of it
    folded, run = (traced(name, steps, shortened=each) for each in (True, False))

    assert in_order(folded.written_out()) == in_order(run.written_out())


@pytest.mark.parametrize("name", CASES)
def test_the_statement_is_that_of_a_job_that_runs_them_all(name: str) -> None:
    job = accumulating(CASES[name], MANY)
    folded, run = (stated(job, traced(name, MANY, shortened=each)) for each in (True, False))

    # What is run in full is folded by iterations: those that are like the second are not said again.
    assert dataclasses.replace(folded, phases=folded.phases[: len(run.phases)]) == run


@pytest.mark.parametrize("name", [name for name in CASES if name not in NEVER_FOLD])
def test_no_more_are_run_for_a_thousand_than_for_eight(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Loop] = []
    real = Loop._micro_batch
    monkeypatch.setattr(Loop, "_micro_batch", lambda loop: (ran.append(loop), real(loop)))

    tracing.trace(accumulating(CASES[name], MANY))
    few = len(ran)
    ran.clear()
    found = tracing.trace(accumulating(CASES[name], 1000))

    assert len(ran) == few
    assert found.repeats
    assert all(each.times >= 990 for each in found.repeats)


def test_repetition_is_replayed_until_the_allocator_is_as_it_was() -> None:
    """The first time takes a segment that the second finds; the second leaves everything as it was."""
    events = (Alloc(0, 5 << 20), Alloc(1, 30 << 20), Free(1), Free(0))
    found = replay_until_settled(events, [Repeat(1, 3, 1000)])

    assert len(found.events) == 6
    assert found.repeats == (Repeat(3, 5, 999),)
    assert found.timeline.peak_reserved_bytes == replay(found.events).peak_reserved_bytes


def test_repetition_that_leaves_the_allocator_another_each_time_is_replayed_to_its_end() -> None:
    rules = Rules.from_conf("garbage_collection_threshold:0.5,per_process_memory_fraction:0.9")
    events = (Alloc(0, 5 << 20), Alloc(1, 3 << 20), Free(1), Free(0))
    found = replay_until_settled(events, [Repeat(1, 3, 10)], rules, 1 << 30)

    assert (len(found.events), found.repeats) == (4 + 2 * 10, ())


def in_order(events: Sequence[Event]) -> list[Event]:
    """With blocks named as they come, and the GPU's events by nothing: one that is run again is another one each time.
    What is given up in one go comes in the order of addresses in one process."""
    # DDP times its first ten backwards by events for which only its own logger waits (torch 2.13, c10d/reducer.hpp,
    # reducer_cuda.cpp).
    awaited = {each.what for each in events if isinstance(each, Launch) and each.kind == LaunchKind.WAIT}
    events = [_without_event(each) for each in events if not _is_unheard(each, awaited)]
    born = (event.block for event in events if isinstance(event, Alloc))
    names = {block: number for number, block in enumerate(born)}
    found: list[Event] = []
    for kind, group in groupby((rename_blocks(each, names) for each in events), type):
        together = list(group)
        found += sorted(together, key=_block) if kind in (Free, Role) else together
    return found


def _is_unheard(event: Event, awaited: set[int]) -> bool:
    if not isinstance(event, Launch):
        return False
    return event.kind == LaunchKind.HOST_WAIT_EVENT or (event.kind == LaunchKind.RECORD and event.what not in awaited)


def _without_event(event: Event) -> Event:
    if isinstance(event, Keep):
        return Keep(event.block, 0)
    if isinstance(event, Launch) and event.kind != LaunchKind.KERNEL:
        return Launch(event.kind, event.stream, 0)
    return event


def _block(event: Event) -> int:
    assert isinstance(event, Free | Role)
    return event.block


def stated(of: Job, found: Trace) -> RankClassStatement:
    (rank_class,) = rank_classes(Mesh.of(of.parallel))
    judged: JudgedRank = judging.judge_trace(of, RankTrace(rank_class, _whole(found)), Calibration.none())
    return judged.statement


def _whole(found: Trace) -> Trace:
    return dataclasses.replace(found, seconds=0.0)
