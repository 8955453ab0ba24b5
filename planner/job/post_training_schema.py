"""What a job of post-training has beside its trainer, as values: an engine that generates, a reference and a reward
model, and how the GPU's memory is handed over between them.

Field names are the keys of the YAML. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The engine that generates, on the trainer's GPUs. One on GPUs of its own is no part of the job."""

    engine: str = "vllm"
    """vllm | sglang"""
    placement: str = "same_process"
    """same_process: inside of the trainer's process (TRL's colocate, verl's FSDP workers until 0.6). own_process: a
    process of its own on the same GPU, with a CUDA context of its own."""
    tensor_parallel: int = 1
    """Ranks of one engine; the job's other ranks have engines of their own."""
    gpu_memory_utilization: float = 0.0
    """vLLM's share of the GPU's total; sglang's `mem_fraction_static`, a share of what is free as it starts. 0: the
    largest that is safe, in steps of 0.01."""
    max_model_len: int = 4096
    """The longest sequence, prompt and answer."""
    max_num_seqs: int = 256
    """Sequences that are generated at once."""
    max_num_batched_tokens: int = 8192
    """Tokens of one forward, for which the engine profiles its activations; sglang's `chunked_prefill_size`."""
    dtype: str = "bfloat16"
    """Of the engine's weights."""
    kv_cache_dtype: str = "auto"
    """auto: as the weights."""
    block_size: int = 16
    """Tokens of a block of the KV cache (sglang's `page_size`)."""
    enforce_eager: bool = True
    """false: decoding is captured in CUDA graphs, which take memory of their own."""
    sleep_level: int = 1
    """0: the engine never sleeps. 1: while it sleeps its weights are on the host and its KV cache is gone. 2: both are
    gone. On the GPU 1 and 2 are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """How the trainer's weights come to the engine after each step."""

    bucket_bytes: int = 0
    """Tensors are gathered one by one and copied into a bucket of this size, which is then sent; 0: each tensor is
    handed over as it is gathered."""
    while_awake: str = "weights"
    """Which parts of the engine are awake meanwhile. weights: the KV cache is woken afterwards
    (`wake_up(tags=["weights"])`). kv_cache: both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOffload:
    """What of the trainer rests on the host while others have the GPU."""

    parameters: bool = False
    """verl's `param_offload`; they come back for the weight sync, too."""
    optimizer: bool = False
    """verl's `optimizer_offload`: the optimizer's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenModel:
    """A model that only runs forward, in the trainer's process, sharded as the trainer's is."""

    config: Mapping[str, Any] | None = None
    """A transformers config, as `model.hf_config`; null: the job's own model."""
    head: str = ""
    """Which transformers head; empty: that of the job's model, and sequence_classification for a reward model."""
    dtype: str = "bfloat16"
    """Of its parameters."""
    offload: bool = True
    """Its parameters rest on the host: of shards one by one (CPUOffloadPolicy), of a whole model between its phases."""
    micro_batch_size: int = 1
    """Samples of a rank in one forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostTraining:
    """Reinforcement learning with an engine on the trainer's GPUs: what is beside the trainer, and who gives way."""

    rollout: Rollout = field(default_factory=Rollout)
    weight_sync: WeightSync = field(default_factory=WeightSync)
    trainer_offload: TrainerOffload = field(default_factory=TrainerOffload)
    empty_cache: bool = True
    """The trainer's allocator gives its cache back before each handover; false: what it once reserved stays so."""
    reference: FrozenModel | None = None
    """The policy as it was at first, for the KL penalty."""
    reward: FrozenModel | None = None
    """What scores the answers."""
