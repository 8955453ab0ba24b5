"""How an inference engine divides its share of a trainer's GPU, and what it holds on GPU and host while it sleeps."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.events import Alloc, Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.job import overhead
from planner.job.overhead import OutsideEstimate
from planner.job.schema import Rollout
from planner.tracing.rank_trace import EngineFigures
from planner.units import MIB


# vLLM takes `gpu_memory_utilization` of the GPU's total for itself: weights, the activations and what grows outside of
# torch in its profile run, and all that is left for the KV cache (vLLM 0.11, vllm/v1/worker/gpu_worker.py,
# determine_available_memory). Less than the share free at its start is an error there. sglang takes
# `mem_fraction_static` of what is free as it starts for weights and KV cache; activations and graphs come on top
# (sglang 0.5, model_runner_kv_cache_mixin.py, _profile_available_bytes). CUDA graphs, NCCL and the context of a
# process of its own lie outside of either share.
class EngineState(StrEnum):
    """Which parts of an engine are awake."""

    ABSENT = "absent"
    ASLEEP = "asleep"
    WEIGHTS = "weights"
    WEIGHTS_AND_KV = "weights_and_kv_cache"
    RUNNING = "running"
    """All of it is awake and it computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHeld:
    """What an engine holds on a GPU at a moment; bytes."""

    weights_bytes: int = 0
    kv_cache_bytes: int = 0
    activation_bytes: int = 0
    graphs_bytes: int = 0
    outside_bytes: int = 0
    """Its CUDA context where it is a process of its own, NCCL, what its profile run found outside of torch."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.activation_bytes + self.graphs_bytes + self.outside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """An engine under one share of the GPU; bytes. `low_bytes` and `high_bytes` say how far what is reported rather
    than traced (graphs, context, NCCL) may be from the best estimate, below and above."""

    figures: EngineFigures
    utilization: float
    weights_bytes: int
    """In segments of torch's allocator."""
    kv_blocks: int
    kv_tokens: int
    kv_cache_bytes: int
    """In segments of torch's allocator."""
    non_torch_bytes: int
    graphs_bytes: int
    outside_bytes: int
    low_bytes: int
    high_bytes: int
    sleeps: bool

    def held(self, state: EngineState) -> EngineHeld:
        """What it holds in a state; one that never sleeps keeps its weights and its KV cache."""
        if state is EngineState.ABSENT:
            return EngineHeld()
        if not self.sleeps and state in (EngineState.ASLEEP, EngineState.WEIGHTS):
            state = EngineState.WEIGHTS_AND_KV
        awake = state is not EngineState.ASLEEP
        with_kv = state in (EngineState.WEIGHTS_AND_KV, EngineState.RUNNING)
        return EngineHeld(
            weights_bytes=self.weights_bytes if awake else 0,
            kv_cache_bytes=self.kv_cache_bytes if with_kv else 0,
            activation_bytes=self.figures.activation_bytes if state is EngineState.RUNNING else 0,
            graphs_bytes=self.graphs_bytes,
            outside_bytes=self.outside_bytes + self.non_torch_bytes,
        )


def engine_memory(
    rollout: Rollout,
    figures: EngineFigures,
    outside: OutsideEstimate,
    utilization: float,
    *,
    total_bytes: int,
    free_at_start_bytes: int,
) -> EngineMemory:
    """The engine under this share.

    `outside` is what its process adds outside of torch, `total_bytes` the GPU's total, `free_at_start_bytes` what is
    free when it starts. A KV cache of zero blocks means that the share is too small.
    """
    non_torch = overhead.NON_TORCH * MIB
    known = (overhead.CUDA_GRAPHS_SMALLEST, overhead.CUDA_GRAPHS, overhead.CUDA_GRAPHS_LARGEST)
    least, graphs, most = (0, 0, 0) if rollout.enforce_eager else (size * MIB for size in known)
    in_blocks, in_segments = weights_in_allocator(figures.weight_tensors)
    if rollout.engine == "vllm":
        left = int(total_bytes * utilization) - in_blocks - figures.activation_bytes - non_torch
    else:
        left = int(max(free_at_start_bytes, 0) * utilization) - in_blocks
    blocks = kv_blocks(left, figures.kv_token_bytes, rollout.block_size)
    tokens = blocks * rollout.block_size
    # One tensor to a layer, each in segments of its own.
    rules, layer_bytes = Rules(), tokens * figures.kv_token_bytes // figures.kv_layers
    kv_cache = figures.kv_layers * rules.segment_size(rules.round_size(layer_bytes)) if tokens else 0
    return EngineMemory(
        figures=figures,
        utilization=utilization,
        weights_bytes=in_segments,
        kv_blocks=blocks,
        kv_tokens=tokens,
        kv_cache_bytes=kv_cache,
        non_torch_bytes=non_torch,
        graphs_bytes=graphs,
        outside_bytes=outside.total_bytes,
        low_bytes=outside.total_bytes - outside.low_bytes + graphs - least,
        high_bytes=outside.high_bytes - outside.total_bytes + most - graphs,
        sleeps=rollout.sleep_level > 0,
    )


@functools.cache
def weights_in_allocator(sizes: tuple[int, ...]) -> tuple[int, int]:
    """Bytes in blocks, which is what vLLM's log calls the weights, and in segments, which is what they take: sleep mode
    allocates them by torch's allocator, in a pool of their own (vllm/device_allocator/cumem.py)."""
    replayed = replay([Alloc(block, size) for block, size in enumerate(sizes)])
    return replayed.peak_allocated_bytes, replayed.peak_reserved_bytes


def kv_blocks(available_bytes: int, kv_token_bytes: int, block_size: int) -> int:
    """How many blocks of `block_size` tokens fit; 0 for a negative rest, as vLLM counts."""
    return max(available_bytes // (kv_token_bytes * block_size), 0)


# vLLM 0.11, vllm/device_allocator/cumem.py, sleep: a pinned tensor as large as each segment, freed as it wakes.
BACKED_UP = 1
"""The sleep level at which weights are kept on the host."""


def backup_blocks(figures: EngineFigures) -> tuple[tuple[int, int], ...]:
    """A block for each segment of the weights, those that small tensors share as large as such segments are: bytes, and
    how many there are of them."""
    rules = Rules()
    own = Counter(
        rules.segment_size(rules.round_size(size))
        for size in figures.weight_tensors
        if size >= rules.minimum_large_bytes
    )
    shared = weights_in_allocator(figures.weight_tensors)[1] - sum(size * count for size, count in own.items())
    own[rules.large_segment_bytes] += shared // rules.large_segment_bytes
    own[rules.small_segment_bytes] += shared % rules.large_segment_bytes // rules.small_segment_bytes
    return tuple((size, count) for size, count in sorted(own.items(), reverse=True) if count)


def with_sleeping_weights(
    events: Sequence[HostEvent], figures: EngineFigures, rollout: Rollout
) -> tuple[HostEvent, ...]:
    """What the trainer's rank does on the host, and the engine's weights from each rollout's end to the next sync."""
    if rollout.sleep_level != BACKED_UP:
        return tuple(events)
    blocks = backup_blocks(figures)
    unused = max((event.block for event in events if isinstance(event, HostAlloc)), default=0) + 1
    merged: list[HostEvent] = []
    asleep: list[HostAlloc] = []
    runs = False
    for event in events:
        merged.append(event)
        if not isinstance(event, Mark):
            continue
        if event.phase is Phase.WEIGHT_SYNC:
            merged += [HostFree(weights.block) for weights in asleep]
            asleep, runs = [], False
        elif event.phase is Phase.ROLLOUT:
            runs = True
        elif runs:
            asleep = [
                HostAlloc(number, size, HostCategory.PARAMETER, pinned=True, count=count)
                for number, (size, count) in enumerate(blocks, unused)
            ]
            unused, runs = unused + len(blocks), False
            merged += asleep
    return tuple(merged)
