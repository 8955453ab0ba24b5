"""Judges a trainer that shares its GPU with an engine: the sum of both in every phase, and who keeps what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator.replay import Replay, replay
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Phase
from planner.job import overhead
from planner.job.overhead import OutsideEstimate, outside
from planner.job.schema import Job, PostTraining
from planner.report.attribution import HeldInPhase, held_in_phases
from planner.report.shared_gpu import SharedGpu, SharedPhase
from planner.report.statement import Verdict
from planner.tracing.rank_trace import EngineFigures
from planner.tracing.rollout import EngineHeld, EngineMemory, EngineState, engine_memory
from planner.units import MIB, show_bytes

_WORTH_NAMING = 64 * MIB
_ENGINE_RUNS = (Phase.WEIGHT_SYNC, Phase.ROLLOUT)


def keepers(said: PostTraining, row: SharedPhase, held: HeldInPhase, capacity_bytes: int) -> str:
    """A sentence on a phase that exceeds."""
    offload, found = said.trainer_offload, []
    cached = held.reserved_bytes - held.allocated_bytes
    if row.phase in _ENGINE_RUNS:
        if not offload.parameters and row.phase is Phase.ROLLOUT:
            found.append((held.parameter_bytes, "the trainer's parameters", "trainer_offload.parameters: true"))
        if not offload.optimizer:
            found.append((held.optimizer_bytes, "the optimizer's state", "trainer_offload.optimizer: true"))
        if row.phase is Phase.WEIGHT_SYNC:
            found += _awake_while_synced(said, row)
    elif said.rollout.sleep_level == 0:
        awake = row.engine_weights_bytes + row.engine_kv_cache_bytes
        found.append((awake, f"{said.rollout.engine}, which never sleeps", "rollout.sleep_level: 1"))
    if not said.empty_cache:
        found.append((cached, "the cache of the trainer's allocator", "empty_cache: true"))
    for name, kept in (("reference", held.reference_bytes), ("reward", held.reward_bytes)):
        frozen = getattr(said, name)
        if frozen is not None and not frozen.offload and row.phase is not Phase(f"{name}_forward"):
            found.append((kept, f"the {name} model", f"{name}.offload: true"))
    named = [f"{show_bytes(size)} by {who} ({key})" for size, who, key in found if size >= _WORTH_NAMING]
    more = show_bytes(row.total_bytes - capacity_bytes)
    at = row.phase.value.replace("_", " ")
    where = f"{at} of iteration {row.iteration} lacks {more}"
    if not named:
        return f"{where}, and everything that may rest does: a smaller share, smaller batches or more GPUs are needed"
    return f"{where}; kept meanwhile: {', '.join(named)}"


def _awake_while_synced(said: PostTraining, row: SharedPhase) -> list[tuple[int, str, str]]:
    """The engine's cache, which the sync of the weights does not need."""
    if said.rollout.sleep_level == 0:
        return [(row.engine_kv_cache_bytes, f"{said.rollout.engine}, which never sleeps", "rollout.sleep_level: 1")]
    if said.weight_sync.while_awake == "kv_cache":
        return [(row.engine_kv_cache_bytes, "the engine's KV cache", "weight_sync.while_awake: weights")]
    return []


_STEPS = 100
"""Shares are looked for in steps of a hundredth."""
_BEFORE_THE_ENGINE = (Phase.LOAD, Phase.CHECKPOINT_LOAD)

_WITH_EXPANDABLE_SEGMENTS = (
    "vLLM switches expandable segments off for what sleeps; one that does not gives nothing back asleep"
    " (vllm-project/vllm#11743)"
)

Interval = Callable[[int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SharedJudgement:
    """A verdict, its sums, and the trainer's replay that they are made of."""

    verdict: Verdict
    shared: SharedGpu
    timeline: Timeline
    cache_releases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGpuJudge:
    """What does not change with the share. `interval` is that of the trainer's device bytes."""

    job: Job
    events: Sequence[Event]
    figures: EngineFigures
    rules: Rules
    held: OutsideEstimate
    """Of the trainer's process."""
    engine_outside: OutsideEstimate
    capacity_bytes: int
    interval: Interval
    free: Timeline
    phases: Sequence[HeldInPhase]
    """Of the replay on a device without end."""

    @classmethod
    def of(
        cls,
        job: Job,
        events: Sequence[Event],
        figures: EngineFigures,
        held: OutsideEstimate,
        communicators: Sequence[int],
        interval: Interval,
    ) -> SharedGpuJudge:
        """For one trace. `communicators` are those of the trainer."""
        rules = Rules.from_conf(job.allocator.conf)
        free = replay(events, rules)
        return cls(
            job=job,
            events=events,
            figures=figures,
            rules=rules,
            held=held,
            engine_outside=engine_outside(job, communicators),
            capacity_bytes=job.cluster.capacity_bytes,
            interval=interval,
            free=free,
            phases=held_in_phases(events, free),
        )

    def judge(self) -> SharedJudgement:
        """At the job's share, or at the largest safe one if it leaves it open."""
        safe = next((share for share in reversed(_shares()) if self._fits(share)), 0.0)
        largest = self._largest(safe)
        said = self._said.rollout.gpu_memory_utilization
        share = said or safe or largest or self._smallest()
        engine = self.engine(share)
        capped, cannot_wake = self.capped_replay(engine)
        exceeds = capped.out_of_memory is not None or bool(cannot_wake) or self._starves(engine)
        used = self.free if exceeds else capped
        phases = self.phases if exceeds else held_in_phases(self.events, capped)
        rows = self._rows(engine, phases)
        tight = capped.cache_releases > 0 or any(row.interval_bytes[1] > self.capacity_bytes for row in rows)
        shared = SharedGpu(
            phases=_fullest_of_each(rows),
            utilization=share,
            solved=not said,
            kv_blocks=engine.kv_blocks,
            kv_tokens=engine.kv_tokens,
            kv_block_bytes=self.figures.kv_token_bytes * self._said.rollout.block_size,
            largest_safe_utilization=safe,
            largest_utilization=largest,
            kept=self._kept(engine, rows) if exceeds else (),
            assumed=assumptions_of(self.job, self.figures),
        )
        verdict = Verdict.EXCEEDS if exceeds else Verdict.TIGHT if tight else Verdict.FITS
        return SharedJudgement(verdict, shared, used, capped.cache_releases)

    def engine(self, share: float) -> EngineMemory:
        """The engine under this share."""
        return engine_memory(
            self._said.rollout,
            self.figures,
            self.engine_outside,
            share,
            total_bytes=self.job.cluster.gpu.total_bytes,
            free_at_start_bytes=self._free_at_start(),
        )

    def exceeds(self, share: float) -> bool:
        """Whether a plan of this share would say so."""
        engine = self.engine(share)
        if self._starves(engine):
            return True
        capped, cannot_wake = self.capped_replay(engine)
        return capped.out_of_memory is not None or bool(cannot_wake)

    def capped_replay(self, engine: EngineMemory) -> tuple[Timeline, Phase | None]:
        """The trainer's allocator with what the engine leaves it, and the phase for which the engine cannot wake."""
        run = Replay(self.rules, None, device_bytes=self.job.cluster.gpu.total_bytes)
        for each in self.phases:
            room = self._room(engine, each.span.phase)
            if run.allocator.reserved > room:
                return run.timeline(), each.span.phase
            run.allocator.device.capacity_bytes = room
            if not run.feed(self.events[each.span.first : each.span.last]):
                break
        return run.timeline(), None

    @property
    def _said(self) -> PostTraining:
        assert self.job.post_training is not None
        return self.job.post_training

    def _state(self, phase: Phase) -> EngineState:
        if phase in _BEFORE_THE_ENGINE:
            return EngineState.ABSENT
        if phase is Phase.ROLLOUT:
            return EngineState.RUNNING
        if phase is Phase.WEIGHT_SYNC:
            only = self._said.weight_sync.while_awake == "weights"
            return EngineState.WEIGHTS if only else EngineState.WEIGHTS_AND_KV
        return EngineState.ASLEEP

    def _room(self, engine: EngineMemory, phase: Phase) -> int:
        return max(self.capacity_bytes - self.held.total_bytes - engine.held(self._state(phase)).total_bytes, 0)

    def _free_at_start(self) -> int:
        loaded = [each for each in self.phases if each.span.phase in _BEFORE_THE_ENGINE]
        resting = self.free.reserved_bytes[loaded[-1].span.last - 1] if loaded else 0
        return self.capacity_bytes - self.held.total_bytes - self.engine_outside.total_bytes - resting

    def _starves(self, engine: EngineMemory) -> bool:
        """Whether its KV cache holds not even one sequence: the engine refuses to start."""
        return engine.kv_tokens < self._said.rollout.max_model_len

    def _fits(self, share: float) -> bool:
        """Without a replay: where every phase has the room that it takes, the replay is the free one."""
        engine = self.engine(share)
        if self._starves(engine):
            return False
        return all(row.interval_bytes[1] <= self.capacity_bytes for row in self._rows(engine, self.phases))

    def _largest(self, safe: float) -> float:
        """Between a share that fits, or the smallest that starts, and all of the GPU."""
        low = round((safe or self._smallest()) * _STEPS)
        if not low or self.exceeds(low / _STEPS):
            return 0.0
        high = _STEPS + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.exceeds(middle / _STEPS) else (middle, high)
        return low / _STEPS

    def _smallest(self) -> float:
        return next((share for share in _shares() if not self._starves(self.engine(share))), 1.0)

    def _rows(self, engine: EngineMemory, phases: Sequence[HeldInPhase]) -> list[SharedPhase]:
        return [self._row(engine, each) for each in phases]

    def _row(self, engine: EngineMemory, each: HeldInPhase) -> SharedPhase:
        state = self._state(each.span.phase)
        held: EngineHeld = engine.held(state)
        own = each.reserved_bytes + self.held.total_bytes
        low, high = self.interval(own)
        there = state is not EngineState.ABSENT
        return SharedPhase(
            phase=each.span.phase,
            iteration=each.span.iteration,
            trainer_bytes=each.reserved_bytes - each.reference_bytes - each.reward_bytes,
            reference_bytes=each.reference_bytes,
            reward_bytes=each.reward_bytes,
            outside_bytes=self.held.total_bytes,
            engine_weights_bytes=held.weights_bytes,
            engine_kv_cache_bytes=held.kv_cache_bytes,
            engine_activation_bytes=held.activation_bytes,
            engine_outside_bytes=held.graphs_bytes + held.outside_bytes,
            total_bytes=own + held.total_bytes,
            interval_bytes=(
                low + held.total_bytes - (engine.low_bytes if there else 0),
                high + held.total_bytes + (engine.high_bytes if there else 0),
            ),
        )

    def _kept(self, engine: EngineMemory, rows: Sequence[SharedPhase]) -> tuple[str, ...]:
        """Who does not give way in the fullest stretch of each phase that exceeds."""
        if self._starves(engine):
            rollout = self._said.rollout
            needs = rollout.max_model_len * self.figures.kv_token_bytes
            return (
                f"{rollout.engine} does not start: at a share of {engine.utilization:.2f} its KV cache holds"
                f" {engine.kv_tokens} tokens, and a sequence of {rollout.max_model_len} takes {show_bytes(needs)}",
            )
        fullest = {row.phase: index for index, row in sorted(enumerate(rows), key=lambda each: each[1].total_bytes)}
        return tuple(
            keepers(self._said, rows[index], self.phases[index], self.capacity_bytes)
            for index in sorted(fullest.values())
            if rows[index].total_bytes > self.capacity_bytes
        )


def _shares() -> list[float]:
    return [step / _STEPS for step in range(1, _STEPS + 1)]


def _fullest_of_each(rows: Sequence[SharedPhase]) -> tuple[SharedPhase, ...]:
    """One row for each phase, in the order in which they first begin."""
    found: dict[Phase, SharedPhase] = {}
    for row in rows:
        if row.phase not in found or row.total_bytes > found[row.phase].total_bytes:
            found[row.phase] = row
    return tuple(found.values())


def engine_outside(job: Job, communicators: Sequence[int]) -> OutsideEstimate:
    """What the engine's process adds outside of torch: NCCL of its ranks, and a context where it is one of its own.

    The images of its kernels are part of its share (`engine_table.NON_TORCH`)."""
    assert job.post_training is not None
    rollout, gpu, software = job.post_training.rollout, job.cluster.gpu, job.software
    context = outside(gpu, software, []).cuda_context_bytes - overhead.KERNEL_IMAGES * MIB
    reported = (overhead.ASLEEP_OF_SEVERAL_RANKS_LARGEST - overhead.NON_TORCH) * MIB
    several = rollout.tensor_parallel > 1
    if rollout.placement == "own_process":
        alone = outside(gpu, software, [rollout.tensor_parallel])
        high = alone.high_bytes - overhead.KERNEL_IMAGES_LARGEST * MIB
        return replace(
            alone,
            cuda_context_bytes=context,
            low_bytes=alone.low_bytes - overhead.KERNEL_IMAGES_SMALLEST * MIB,
            high_bytes=max(high, reported) if several else high,
        )
    without = outside(gpu, software, communicators)
    both = outside(gpu, software, [*communicators, rollout.tensor_parallel])
    return replace(
        both,
        cuda_context_bytes=0,
        nccl_bytes=both.nccl_bytes - without.nccl_bytes,
        low_bytes=both.low_bytes - without.low_bytes,
        high_bytes=max(both.high_bytes - without.high_bytes, reported - context if several else 0),
    )


def assumptions_of(job: Job, figures: EngineFigures) -> tuple[str, ...]:
    """What a plan of post-training takes for granted, as sentences for people."""
    assert job.post_training is not None
    rollout = job.post_training.rollout
    shares: Mapping[str, str] = {
        "vllm": f"a share of the GPU's {show_bytes(job.cluster.gpu.total_bytes)}, for itself alone",
        "sglang": "a share of what is free as it starts, for weights and KV cache; activations come on top",
    }
    said = [
        f"{rollout.engine} takes {shares[rollout.engine]}",
        "it starts when the trainer is loaded and at rest",
        overhead.NON_TORCH_SOURCE,
        "NCCL's groups of the trainer stay while they are idle; 7 to 10 GB a rank were reported with Megatron-LM"
        " (verl-project/verl#6266), beyond the table that is counted here",
        *figures.assumed,
    ]
    if rollout.tensor_parallel > 1:
        said.append(overhead.ASLEEP_SOURCE)
    if rollout.engine == "vllm" and "expandable_segments:True" in job.allocator.conf:
        said.append(_WITH_EXPANDABLE_SEGMENTS)
    if not rollout.enforce_eager:
        said.append(overhead.CUDA_GRAPHS_SOURCE)
    if rollout.placement == "same_process":
        said.append("the engine's activations take memory of their own, none of what the trainer has cached")
    return tuple(said)
