"""What an engine that sleeps holds on the host: at level 1 its weights, each segment of them in pinned memory.

vLLM 0.11, vllm/device_allocator/cumem.py, sleep: a pinned tensor as large as each segment, given up as it wakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.allocator.rules import Rules
from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostBlock, HostCategory, HostEvent, HostFree
from planner.job.post_training_schema import Rollout
from planner.rollout.engine_figures import EngineFigures
from planner.rollout.engine_memory import weights_in_allocator

BACKED_UP = 1
"""The sleep level at which weights are kept on the host."""


def with_sleeping_weights(
    events: Sequence[HostEvent], figures: EngineFigures, rollout: Rollout
) -> tuple[HostEvent, ...]:
    """What the trainer's rank does on the host, and the engine's weights from each rollout's end to the next sync."""
    if rollout.sleep_level != BACKED_UP:
        return tuple(events)
    return tuple(_asleep_between(events, backup_blocks(figures)))


def backup_blocks(figures: EngineFigures) -> tuple[HostBlock, ...]:
    """A block for each segment of the weights; those that small tensors share are as large as such segments are."""
    rules = Rules()
    own = Counter(
        rules.segment_size(rules.round_size(size))
        for size in figures.weight_tensors
        if size >= rules.minimum_large_bytes
    )
    shared = weights_in_allocator(figures.weight_tensors)[1] - sum(size * count for size, count in own.items())
    own[rules.large_segment_bytes] += shared // rules.large_segment_bytes
    own[rules.small_segment_bytes] += shared % rules.large_segment_bytes // rules.small_segment_bytes
    return tuple(
        HostBlock(bytes=size, category=HostCategory.PARAMETER, pinned=True, name="engine asleep", count=count)
        for size, count in sorted(own.items(), reverse=True)
        if count
    )


def _asleep_between(events: Sequence[HostEvent], blocks: Sequence[HostBlock]) -> Iterator[HostEvent]:
    unused = max((each.block for each in events if isinstance(each, HostAlloc)), default=0) + 1
    held: list[int] = []
    ran = False
    for event in events:
        if isinstance(event, Mark) and event.phase is Phase.WEIGHT_SYNC:
            yield event
            yield from (HostFree(block) for block in held)
            held, ran = [], False
            continue
        yield event
        if isinstance(event, Mark) and event.phase is Phase.ROLLOUT:
            ran = True
        elif isinstance(event, Mark) and ran:
            held = list(range(unused, unused + len(blocks)))
            unused, ran = unused + len(blocks), False
            yield from (HostAlloc(block, each) for block, each in zip(held, blocks, strict=True))
