"""Repetition that is run once gives the same memory, to the byte, as repetition that is run."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest

import planner.paper  # noqa: F401
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.events import Event, Mark
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import (
    Cluster,
    Decoder,
    DpShard,
    Gpu,
    Job,
    Model,
    Optimizer,
    Parallel,
    Pp,
    Recompute,
    Tp,
    Train,
)
from planner.report.attribution import Attribution, attribute
from planner.tracing import job_program as tracing
from planner.tracing import pipeline_folding
from planner.tracing.pipeline_folding import folds_micro_batches
from planner.tracing.rank_trace import Trace
from planner.upstream import torch_releases

DECODER = Decoder(layers=6, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=300)
USUAL = {"micro_batch_size": 1, "sequence_length": 32, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0}


def job(parallel: Parallel, **train: Any) -> Job:
    world = Mesh.of(parallel).world_size
    return Job(
        model=Model(decoder=DECODER),
        train=Train(**{**USUAL, **train}),
        parallel=parallel,
        cluster=Cluster(gpus_per_node=world, gpu=Gpu(total_bytes=80 << 30, arch="sm_90")),
    )


def pipeline(schedule: str = "1F1B", **axes: Any) -> Parallel:
    return Parallel(pp=Pp(degree=2, schedule=schedule), **axes)


SHARDED = DpShard(degree=2, reshard_after_forward=False)
CASES = {
    "alone": job(Parallel()),
    "alone, four iterations": job(Parallel(), iterations=4, gradient_accumulation_steps=2),
    "sharded": job(Parallel(dp_shard=DpShard(degree=4)), precision="fsdp_mixed", recompute=Recompute(mode="full")),
    "gpipe": job(pipeline("GPipe")),
    "1f1b": job(pipeline(), recompute=Recompute(mode="selective"), precision="bf16_autocast"),
    "interleaved": job(pipeline("Interleaved1F1B"), optimizer=Optimizer(name="SGD", arguments={"momentum": 0.9})),
    "breadth first": job(pipeline("LoopedBFS"), zero_grad_set_to_none=False),
    "zero bubble": job(pipeline("InterleavedZeroBubble")),
    "v-shaped": job(pipeline("ZBVZeroBubble")),
    "dual": job(pipeline("DualPipeV")),
    "1f1b, sharded": job(pipeline(dp_shard=SHARDED), precision="fsdp_mixed"),
    "1f1b, resharded": job(pipeline(dp_shard=DpShard(degree=2)), precision="fsdp_mixed"),
    "interleaved, sharded": job(
        pipeline("Interleaved1F1B", dp_shard=SHARDED), precision="fsdp_mixed", recompute=Recompute(mode="full")
    ),
    "v-shaped, sharded": job(pipeline("ZBVZeroBubble", dp_shard=SHARDED)),
    "interleaved, sharded, split": job(
        pipeline("Interleaved1F1B", dp_shard=SHARDED, tp=Tp(degree=2, sequence_parallel=True, loss_parallel=True)),
        precision="fsdp_mixed",
    ),
}
NEEDS = {"dual": [pytest.mark.skipif(not torch_releases.since(2, 9), reason="torch has DualPipeV since 2.9")]}
ALWAYS_FOLD = (
    "alone",
    "sharded",
    "gpipe",
    "1f1b",
    "interleaved",
    "breadth first",
    "1f1b, sharded",
    "interleaved, sharded",
)
EACH = [
    pytest.param(
        name,
        rank_class.representative,
        marks=NEEDS.get(name, ()),
    )
    for name, of in CASES.items()
    for rank_class in rank_classes(Mesh.of(of.parallel))
]


@pytest.mark.parametrize(("name", "rank"), EACH)
def test_folded_or_not_every_phase_has_the_same_peaks(name: str, rank: int) -> None:
    assert _memory(name, rank, shortened=True).peaks == _memory(name, rank, shortened=False).peaks


@pytest.mark.parametrize(("name", "rank"), EACH)
def test_folded_or_not_the_same_holders_have_the_peak(name: str, rank: int) -> None:
    folded, run = (_memory(name, rank, shortened=each).attribution for each in (True, False))

    assert dataclasses.replace(folded, event=run.event) == run


of_pipelines = pytest.mark.skipif(
    not folds_micro_batches(), reason="with this torch micro-batches of pipelines are all run"
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=of_pipelines if CASES[name].parallel.pp.degree > 1 else ()) for name in ALWAYS_FOLD],
)
def test_these_do_fold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold that is refused would be traced again in full, and no one would see why it takes so long."""
    asked: list[dict[str, bool]] = []
    real = tracing._trace

    def watched(*arguments: Any, **named: bool) -> Any:
        asked.append(named)
        return real(*arguments, **named)

    monkeypatch.setattr(tracing, "_trace", watched)
    tracing.trace(CASES[name], 0)

    assert [any(each.values()) for each in asked] == [True]


@of_pipelines
def test_of_the_micro_batches_of_a_sharded_stage_few_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, which finds everything new, the second, which is the example, and the first of later iterations.

    That gradients wait to be reduced is nothing to a forward: it is told then as before.
    """
    ran: dict[pipeline_folding._MicroBatches, list[str]] = {}
    real = pipeline_folding._MicroBatches.run

    def watched(micro: pipeline_folding._MicroBatches, kind: str, micro_batch: int, *after: Any) -> Any:
        ran.setdefault(micro, []).append(f"{kind}{micro_batch}")
        return real(micro, kind, micro_batch, *after)

    monkeypatch.setattr(pipeline_folding._MicroBatches, "run", watched)
    tracing.trace(CASES["interleaved, sharded"], 0)

    assert [sorted(each) for each in ran.values()] == [["B0", "B0", "B0", "B1", "F0", "F0", "F0", "F1"]] * 2


def test_an_optimizer_that_counts_its_steps_is_run_step_by_step() -> None:
    counting = dataclasses.replace(CASES["alone"].train, iterations=8, optimizer=Optimizer(name="RAdam"))
    of = dataclasses.replace(CASES["alone"], train=dataclasses.replace(counting, gradient_accumulation_steps=1))

    assert _peaks(tracing.trace(of).events) == _peaks(tracing.trace(of, shortened=False).events)


@dataclasses.dataclass(frozen=True)
class _Memory:
    peaks: list[tuple[Any, ...]]
    attribution: Attribution


@cache
def _memory(name: str, rank: int, *, shortened: bool) -> _Memory:
    events = _trace(CASES[name], rank, shortened=shortened).written_out()
    return _Memory(_peaks(events), attribute(events, replay(events, Rules())))


def _trace(of: Job, rank: int, *, shortened: bool) -> Trace:
    return tracing.trace(of, rank, shortened=shortened)


def _peaks(events: tuple[Event, ...]) -> list[tuple[Any, ...]]:
    """Of each stretch between marks: what was allocated and reserved at most, and what is left at its end."""
    timeline = replay(events, Rules())
    bounds = [index for index, event in enumerate(events) if isinstance(event, Mark)]
    found: dict[tuple[Any, int], tuple[int, int, int, int]] = {}
    for first, after in zip(bounds, [*bounds[1:], len(events)], strict=True):
        mark = events[first]
        assert isinstance(mark, Mark)
        _, *before = found.get((mark.phase, mark.iteration), (0, 0, 0, 0))
        stretch = slice(first, after)
        found[mark.phase, mark.iteration] = (
            timeline.allocated_bytes[after - 1],
            max([before[0], *timeline.allocated_bytes[stretch]]),
            max([before[1], *timeline.reserved_bytes[stretch]]),
            max([before[2], *timeline.requested_bytes[stretch]]),
        )
    return [(*where, *figures) for where, figures in found.items()]
