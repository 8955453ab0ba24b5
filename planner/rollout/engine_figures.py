"""What was traced of an engine on one of its ranks, as a value for readers that trace nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """One rank of an engine; bytes."""

    weight_tensors: tuple[int, ...]
    """The sizes of its parameters, as the engine joins and divides them, and of its table of rotations, in the order in
    which they are made."""
    kv_layers: int
    """Layers with a KV cache, each of which is a tensor."""
    activation_bytes: int
    """What one forward of the engine's largest batch and its sampling ask for beyond the weights, at their peak."""
    kv_token_bytes: int
    """One token of the KV cache, all layers."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted, as sentences."""
