"""Says who keeps memory that a phase beside it lacks, and the key that would have it given back."""

from __future__ import annotations

from planner.events import Phase
from planner.job.post_training_schema import PostTraining
from planner.report.phase_holders import HeldInPhase
from planner.report.shared_gpu import SharedPhase
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
