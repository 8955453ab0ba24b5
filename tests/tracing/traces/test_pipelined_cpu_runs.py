"""Pipelines for real, over gloo, beside the same ranks traced on a GPU on paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cpu_runs import Both, assert_exact, both_ways, without

from planner.events import Alloc, Event, Free, Mark, Phase, Role
from planner.job.schema import Decoder, Job, Metadata, Model, Optimizer, Parallel, Pp, Recompute, Train
from planner.upstream import torch_releases

pytestmark = pytest.mark.skipif(
    not torch_releases.since(2, 13),
    reason="over gloo the ranks of older versions disagree on the size of what they send",
)
_MICRO_BATCHES = 4
_RECEIVED = "received "

DECODER = Model(decoder=Decoder(layers=6, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=500))
LLAMA = Model(
    hf_config={
        "model_type": "llama", "vocab_size": 500, "hidden_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384,
    }
)  # fmt: skip


def job(name: str, schedule: str, model: Model = DECODER, split: tuple[int, ...] = (), **train: Any) -> Job:
    return Job(
        metadata=Metadata(name=name),
        model=model,
        train=Train(
            micro_batch_size=2,
            sequence_length=64,
            gradient_accumulation_steps=_MICRO_BATCHES,
            gradient_clipping=1.0,
            optimizer=Optimizer(name="AdamW"),
            iterations=2,
            **train,
        ),
        parallel=Parallel(pp=Pp(degree=2, schedule=schedule, split=split)),
    )


JOBS = [
    job("1f1b", "1F1B"),
    job("gpipe", "GPipe"),
    job("interleaved", "Interleaved1F1B"),
    job("uneven", "1F1B", split=(4, 2)),
    job("recomputed", "1F1B", recompute=Recompute(mode="full")),
    job("llama", "1F1B", LLAMA),
    job("v-shaped", "ZBVZeroBubble"),
]
EACH = [(each.metadata.name, rank) for each in JOBS for rank in (0, 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(JOBS, 2)], "pipelined")


@pytest.mark.parametrize(("name", "rank"), EACH)
def test_a_rank_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


# The recording of the V's last rank calls buffers received that its stages fill for each other.
@pytest.mark.parametrize(("name", "rank"), [each for each in EACH if each != ("v-shaped", 1)])
def test_what_was_received_is_there_as_long(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert _received_at_marks(paper.events) == _received_at_marks(real.events)
    assert max(held for _, held in _received_at_marks(paper.events)) > 0


@pytest.mark.parametrize(("name", "most"), [("1f1b", 2), ("gpipe", _MICRO_BATCHES), ("interleaved", 4)])
def test_the_first_rank_holds_as_many_micro_batches_as_its_schedule_lets_fly(runs: Both, name: str, most: int) -> None:
    assert _most_embedded(runs[name, 0][0].events) == most


def test_an_activation_less_is_noticed(runs: Both) -> None:
    paper, real = runs["gpipe", 1]
    received = next(each.block for each in paper.events if isinstance(each, Role) and each.name.startswith(_RECEIVED))

    assert _received_at_marks(without(paper.events, received)) != _received_at_marks(real.events)


def _is_embedded(event: Alloc) -> bool:
    """What the embedding gives, which its kernel takes with index_select; kept until its backward."""
    origin = event.origin
    return origin is not None and origin.op == "aten.index_select" and origin.module.endswith("embedding")


def _most_embedded(events: Sequence[Event]) -> int:
    """The most micro-batches whose embedded tokens are alive at once."""
    alive: set[int] = set()
    most = 0
    for event in events:
        if isinstance(event, Alloc) and _is_embedded(event):
            alive.add(event.block)
        elif isinstance(event, Free):
            alive.discard(event.block)
        most = max(most, len(alive))
    return most


def _received_at_marks(events: Sequence[Event]) -> list[tuple[Phase, int]]:
    """The live bytes that another rank has sent, where another phase begins."""
    received = {each.block for each in events if isinstance(each, Role) and each.name.startswith(_RECEIVED)}
    sizes: dict[int, int] = {}
    found = []
    for event in events:
        if isinstance(event, Alloc) and event.block in received:
            sizes[event.block] = event.requested_bytes
        elif isinstance(event, Free):
            sizes.pop(event.block, None)
        elif isinstance(event, Mark) and (not found or found[-1][0] is not event.phase):
            found.append((event.phase, sum(sizes.values())))
    return found
