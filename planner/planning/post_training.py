"""Judges a trainer that shares its GPU with an engine: the sum of both in every phase, and who keeps what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.allocator.replay import Replay, replay
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Phase
from planner.job import overhead
from planner.job.overhead import OutsideEstimate, communicators_of, outside
from planner.job.schema import Job, PostTraining
from planner.report.attribution import HeldInPhase, held_in_phases
from planner.report.statement import SharedGpu, SharedPhase
from planner.tracing.rank_trace import EngineFigures
from planner.tracing.rollout import EngineMemory, EngineState, engine_memory
from planner.units import MIB, show_bytes
from planner.verdict import Verdict, decide

_STEPS = 100
"""Shares are looked for in steps of a hundredth."""
_SHARES = [step / _STEPS for step in range(1, _STEPS + 1)]
_BEFORE_THE_ENGINE = (Phase.LOAD, Phase.CHECKPOINT_LOAD)
_WORTH_NAMING = 64 * MIB


@dataclass(frozen=True, slots=True)
class SharedJudgement:
    """A verdict, its sums, and the trainer's replay that they are made of."""

    verdict: Verdict
    shared: SharedGpu
    timeline: Timeline
    cache_releases: int


class SharedGpuJudge:
    """Judges one trace under any share of the engine."""

    def __init__(
        self,
        job: Job,
        events: Sequence[Event],
        figures: EngineFigures,
        held: OutsideEstimate,
        interval: Callable[[int], tuple[int, int]],
    ) -> None:
        """`held` and `interval` are of the trainer's process: what it holds outside, and the interval of its bytes."""
        assert job.post_training is not None
        self._job, self._settings, self._events, self._figures = job, job.post_training, events, figures
        self._held, self._interval = held, interval
        self._engine_outside = _engine_outside(job, job.post_training)
        self._capacity_bytes = job.cluster.capacity_bytes
        self._rules = Rules.from_conf(job.allocator.conf)
        self._free = replay(events, self._rules)
        """On a device without end; so are the phases."""
        self._phases = held_in_phases(events, self._free)

    def judge(self) -> SharedJudgement:
        """At the job's share, or at the largest safe one if it leaves it open."""
        smallest = next((share for share in _SHARES if not self._starves(self._engine(share))), 1.0)
        safe = next((share for share in reversed(_SHARES) if self._fits(share)), 0.0)
        largest = self._largest(safe or smallest)
        asked = self._settings.rollout.gpu_memory_utilization
        share = asked or safe or largest or smallest
        engine = self._engine(share)
        capped, cannot_wake = self._replay_beside(engine)
        exceeds = capped.out_of_memory is not None or cannot_wake or self._starves(engine)
        timeline = self._free if exceeds else capped
        rows = self._rows(engine, self._phases if exceeds else held_in_phases(self._events, capped))
        fullest: dict[Phase, SharedPhase] = {}  # in the order in which the phases first begin
        for row in rows:
            if row.phase not in fullest or row.total_bytes > fullest[row.phase].total_bytes:
                fullest[row.phase] = row
        shared = SharedGpu(
            phases=tuple(fullest.values()),
            utilization=share,
            solved=not asked,
            kv_blocks=engine.kv_blocks,
            kv_tokens=engine.kv_tokens,
            kv_block_bytes=self._figures.kv_token_bytes * self._settings.rollout.block_size,
            largest_safe_utilization=safe,
            largest_utilization=largest,
            kept=self._kept(engine, rows) if exceeds else (),
            assumed=assumptions_of(self._job, self._figures),
        )
        verdict = decide(
            runs_out=exceeds,
            highest_bytes=max(row.interval_bytes[1] for row in rows),
            capacity_bytes=self._capacity_bytes,
            cache_releases=capped.cache_releases,
        )
        return SharedJudgement(verdict, shared, timeline, capped.cache_releases)

    def _engine(self, share: float) -> EngineMemory:
        loaded = [held for held in self._phases if held.span.phase in _BEFORE_THE_ENGINE]
        resting = self._free.reserved_bytes[loaded[-1].span.last - 1] if loaded else 0
        return engine_memory(
            self._settings.rollout,
            self._figures,
            self._engine_outside,
            share,
            total_bytes=self._job.cluster.gpu.total_bytes,
            free_at_start_bytes=(
                self._capacity_bytes - self._held.total_bytes - self._engine_outside.total_bytes - resting
            ),
        )

    def _starves(self, engine: EngineMemory) -> bool:
        """Whether its KV cache holds not even one sequence: the engine refuses to start."""
        return engine.kv_tokens < self._settings.rollout.max_model_len

    def _fits(self, share: float) -> bool:
        """Without a replay: where every phase has the room that it takes, the replay is the free one."""
        engine = self._engine(share)
        if self._starves(engine):
            return False
        return all(row.interval_bytes[1] <= self._capacity_bytes for row in self._rows(engine, self._phases))

    def _exceeds(self, share: float) -> bool:
        engine = self._engine(share)
        if self._starves(engine):
            return True
        capped, cannot_wake = self._replay_beside(engine)
        return capped.out_of_memory is not None or cannot_wake

    def _largest(self, least: float) -> float:
        """Between a share that fits, or the smallest that starts, and all of the GPU."""
        low, high = round(least * _STEPS), _STEPS + 1
        if not low or self._exceeds(low / _STEPS):
            return 0.0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._exceeds(middle / _STEPS) else (middle, high)
        return low / _STEPS

    def _replay_beside(self, engine: EngineMemory) -> tuple[Timeline, bool]:
        """The trainer's allocator with what the engine leaves it, and whether there is a phase for which the engine
        cannot wake."""
        run = Replay(self._rules, None, device_bytes=self._job.cluster.gpu.total_bytes)
        for held in self._phases:
            span = held.span
            beside = self._held.total_bytes + engine.held(self._state(span.phase)).total_bytes
            room = max(self._capacity_bytes - beside, 0)
            if run.allocator.reserved > room:
                return run.timeline(), True
            run.allocator.device.capacity_bytes = room
            if not run.feed(self._events[span.first : span.last]):
                break
        return run.timeline(), False

    def _state(self, phase: Phase) -> EngineState:
        if phase in _BEFORE_THE_ENGINE:
            return EngineState.ABSENT
        if phase is Phase.ROLLOUT:
            return EngineState.RUNNING
        if phase is Phase.WEIGHT_SYNC:
            only_weights = self._settings.weight_sync.while_awake == "weights"
            return EngineState.WEIGHTS if only_weights else EngineState.WEIGHTS_AND_KV
        return EngineState.ASLEEP

    def _rows(self, engine: EngineMemory, phases: Sequence[HeldInPhase]) -> list[SharedPhase]:
        rows = []
        for phase in phases:
            state = self._state(phase.span.phase)
            held, there = engine.held(state), state is not EngineState.ABSENT
            own = phase.reserved_bytes + self._held.total_bytes
            low, high = self._interval(own)
            rows.append(
                SharedPhase(
                    phase=phase.span.phase,
                    iteration=phase.span.iteration,
                    trainer_bytes=phase.reserved_bytes - phase.reference_bytes - phase.reward_bytes,
                    reference_bytes=phase.reference_bytes,
                    reward_bytes=phase.reward_bytes,
                    outside_bytes=self._held.total_bytes,
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
            )
        return rows

    def _kept(self, engine: EngineMemory, rows: Sequence[SharedPhase]) -> tuple[str, ...]:
        """Who does not give way in the fullest stretch of each phase that exceeds."""
        if self._starves(engine):
            rollout = self._settings.rollout
            needs = rollout.max_model_len * self._figures.kv_token_bytes
            return (
                f"{rollout.engine} does not start: at a share of {engine.utilization:.2f} its KV cache holds"
                f" {engine.kv_tokens} tokens, and a sequence of {rollout.max_model_len} takes {show_bytes(needs)}",
            )
        fullest = {row.phase: index for index, row in sorted(enumerate(rows), key=lambda pair: pair[1].total_bytes)}
        return tuple(
            _keepers(self._settings, rows[index], self._phases[index], self._capacity_bytes)
            for index in sorted(fullest.values())
            if rows[index].total_bytes > self._capacity_bytes
        )


def _keepers(settings: PostTraining, row: SharedPhase, held: HeldInPhase, capacity_bytes: int) -> str:
    """A sentence on a phase that exceeds."""
    offload, rollout = settings.trainer_offload, settings.rollout
    never_sleeps = (f"{rollout.engine}, which never sleeps", "rollout.sleep_level: 1")
    keepers: list[tuple[int, str, str]] = []
    if row.phase in (Phase.WEIGHT_SYNC, Phase.ROLLOUT):
        if not offload.parameters and row.phase is Phase.ROLLOUT:
            keepers.append((held.parameter_bytes, "the trainer's parameters", "trainer_offload.parameters: true"))
        if not offload.optimizer:
            keepers.append((held.optimizer_bytes, "the optimizer's state", "trainer_offload.optimizer: true"))
        if row.phase is Phase.WEIGHT_SYNC and rollout.sleep_level == 0:
            keepers.append((row.engine_kv_cache_bytes, *never_sleeps))
        elif row.phase is Phase.WEIGHT_SYNC and settings.weight_sync.while_awake == "kv_cache":
            # The sync of the weights does not need it.
            keepers.append((row.engine_kv_cache_bytes, "the engine's KV cache", "weight_sync.while_awake: weights"))
    elif rollout.sleep_level == 0:
        keepers.append((row.engine_weights_bytes + row.engine_kv_cache_bytes, *never_sleeps))
    if not settings.empty_cache:
        cached = held.reserved_bytes - held.allocated_bytes
        keepers.append((cached, "the cache of the trainer's allocator", "empty_cache: true"))
    for name, kept in (("reference", held.reference_bytes), ("reward", held.reward_bytes)):
        frozen = getattr(settings, name)
        if frozen is not None and not frozen.offload and row.phase is not Phase(f"{name}_forward"):
            keepers.append((kept, f"the {name} model", f"{name}.offload: true"))
    more = show_bytes(row.total_bytes - capacity_bytes)
    where = f"{row.phase.value.replace('_', ' ')} of iteration {row.iteration} lacks {more}"
    named = [f"{show_bytes(size)} by {who} ({key})" for size, who, key in keepers if size >= _WORTH_NAMING]
    if not named:
        return f"{where}, and everything that may rest does: a smaller share, smaller batches or more GPUs are needed"
    return f"{where}; kept meanwhile: {', '.join(named)}"


def _engine_outside(job: Job, settings: PostTraining) -> OutsideEstimate:
    """What the engine's process adds outside of torch: NCCL of its ranks, and a context where it is one of its own.

    The images of its kernels are part of its share (`overhead.NON_TORCH`)."""
    rollout, gpu, software = settings.rollout, job.cluster.gpu, job.software
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
    communicators = communicators_of(job)
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
    share = {
        "vllm": f"a share of the GPU's {show_bytes(job.cluster.gpu.total_bytes)}, for itself alone",
        "sglang": "a share of what is free as it starts, for weights and KV cache; activations come on top",
    }[rollout.engine]
    sentences = [
        f"{rollout.engine} takes {share}",
        "it starts when the trainer is loaded and at rest",
        overhead.NON_TORCH_SOURCE,
        "NCCL's groups of the trainer stay while they are idle; 7 to 10 GB a rank were reported with Megatron-LM"
        " (verl-project/verl#6266), beyond the table that is counted here",
        *figures.assumed,
    ]
    if rollout.tensor_parallel > 1:
        sentences.append(overhead.ASLEEP_SOURCE)
    if rollout.engine == "vllm" and "expandable_segments:True" in job.allocator.conf:
        sentences.append(
            "vLLM switches expandable segments off for what sleeps; one that does not gives nothing back asleep"
            " (vllm-project/vllm#11743)"
        )
    if not rollout.enforce_eager:
        sentences.append(overhead.CUDA_GRAPHS_SOURCE)
    if rollout.placement == "same_process":
        sentences.append("the engine's activations take memory of their own, none of what the trainer has cached")
    return tuple(sentences)
