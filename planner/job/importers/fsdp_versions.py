"""FSDP 1 as FSDP 2: which of its words mean what, and what differs.

Words are those of ShardingStrategy of torch 2.13 (distributed/fsdp/api.py), or accelerate's numbers of them (1.15.0,
utils/constants.py, FSDP_SHARDING_STRATEGY).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import SpecError
from planner.job.nodes import Node

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_RESHARDS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
DIFFERENCE = (
    "FSDP 1 is planned as FSDP 2: flat parameters and their padding, autocast around the forward, and layers that are"
    " freed later (record_stream) are left out, so it may take more"
)


def is_first(settings: Mapping[str, Node]) -> bool:
    """Whether they ask for version 1, which accelerate takes where none is said. Raises SpecError for a third."""
    version = settings.get("version")
    if version is not None and str(version.value) not in ("1", "2"):
        raise SpecError(
            f"fsdp_version is {version.summary}", allowed="1, 2", remedy="write one of them", place=version.place
        )
    return version is None or str(version.value) == "1"


def strategy_of(settings: Mapping[str, Node]) -> Node | None:
    """The sharding strategy, by either of its names; None where none is said."""
    for name in ("sharding_strategy", "reshard_after_forward"):
        node = settings.get(name)
        if node is not None and not isinstance(node.value, bool) and str(node.value).lower() not in ("true", "false"):
            return node
    return None


def reshards(strategy: Node) -> bool:
    """Whether layers are freed after their forward. Raises SpecError for a strategy that does not shard."""
    name = _name(strategy)
    if name not in _RESHARDS:
        raise SpecError(
            f"{strategy.name} is {strategy.summary}",
            allowed=", ".join(_RESHARDS),
            remedy="without sharding it is DDP: turn FSDP off" if name == "NO_SHARD" else "write one of these",
            place=strategy.place,
        )
    return _RESHARDS[name]


def is_hybrid(settings: Mapping[str, Node]) -> bool:
    """Whether each node has a whole copy of the shards."""
    strategy = strategy_of(settings) if is_first(settings) else None
    return strategy is not None and _name(strategy).startswith("HYBRID")


def _name(strategy: Node) -> str:
    written = str(strategy.value).upper()
    return STRATEGIES[int(written) - 1] if written in ("1", "2", "3", "4", "5") else written
