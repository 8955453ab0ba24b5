"""What an inference engine beside the trainer takes: parameters, a forward on the paper GPU, its KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner import paper  # before torch
from planner.errors import PlannerError, SpecError
from planner.events import Alloc, Free, Mark, Phase
from planner.job.schema import Job, Model, Parallel, Rollout, Tp, Train
from planner.tracing.rank_trace import EngineFigures
from planner.tracing.spec import failures, host_work
from planner.training import absent_peers, dtensor_speed, inference_engine

# Attention keeps a key and a value of every KV head in every layer (vLLM 0.11, vllm/v1/kv_cache_interface.py,
# FullAttentionSpec; sglang 0.5, model_runner_kv_cache_mixin.py); multi-head latent attention one compressed vector and
# one rotated key instead, on every rank (MLAAttentionSpec). A layer with a sliding window takes what another does: the
# engine divides the same memory, and only fewer tokens of it are alive.
BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head")
_HIDDEN = ("hidden_size", "n_embd")
_OTHER_STATES = ("linear_attention", "mamba", "recurrent", "conv")


@dataclass(frozen=True, slots=True)
class KvShape:
    """What attention keeps of a token in one layer, in numbers: `kv_heads` of `head_dim`, twice; of a latent model one
    vector of `latent_dim` instead."""

    layers: int
    kv_heads: int
    head_dim: int
    latent_dim: int = 0

    def bytes_per_token(self, tensor_parallel: int, dtype: str) -> int:
        """Of all layers, on one rank. Fewer KV heads than ranks are there several times; a latent vector on each."""
        if self.latent_dim:
            return self.layers * self.latent_dim * BYTES_OF_DTYPE[dtype]
        heads = max(self.kv_heads // tensor_parallel, 1)
        return self.layers * 2 * heads * self.head_dim * BYTES_OF_DTYPE[dtype]


def kv_shape_of(model: Model) -> KvShape:
    """Of a transformers config or the built-in decoder. Raises SpecError where the config does not say it."""
    if (decoder := model.decoder) is not None:
        return KvShape(decoder.layers, decoder.kv_heads, decoder.head_dim or decoder.hidden // decoder.heads)
    config = model.hf_config or {}
    text = config.get("text_config", config)
    layers, heads = _number(text, _LAYERS), _number(text, _HEADS)
    kinds = {str(kind) for kind in text.get("layer_types") or ()}
    others = sorted(kind for kind in kinds if any(state in kind for state in _OTHER_STATES))
    if others:
        raise _unknown(f"its layers are partly {', '.join(others)}, whose states planner does not count")
    if text.get("kv_lora_rank"):
        return KvShape(layers, 1, 0, latent_dim=int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim", 0)))
    if text.get("is_encoder_decoder", False):
        raise _unknown("it has an encoder beside its decoder")
    head_dim = text.get("head_dim") or _number(text, _HIDDEN) // heads
    return KvShape(layers, int(text.get("num_key_value_heads") or heads), int(head_dim))


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    for name in names:
        if type(value := config.get(name)) is int and value > 0:
            return value
    raise _unknown(f"its config does not say {names[0]}")


def _unknown(why: str) -> SpecError:
    return SpecError(
        f"the engine's KV cache of this model is not known: {why}",
        allowed="causal language models whose layers are attention",
        remedy="plan the trainer alone, without post_training",
        place="post_training.rollout",
    )


def engine_figures(job: Job, target: str = "") -> EngineFigures:
    """Of the job's engine. Raises SpecError for a model whose cache is not known, TraceError for a forward that cannot
    be traced."""
    assert job.post_training is not None
    rollout = job.post_training.rollout
    shape = kv_shape_of(job.model)
    kept = rollout.dtype if rollout.kv_cache_dtype == "auto" else rollout.kv_cache_dtype
    split = rollout.tensor_parallel if shape.latent_dim else math.gcd(shape.kv_heads, rollout.tensor_parallel)
    assumed: tuple[str, ...] = ()
    if split != rollout.tensor_parallel:
        assumed = (
            f"the engine's activations are those of {split} ranks, since fewer than {rollout.tensor_parallel} KV heads"
            " are not split further",
        )
    sizes = inference_engine.engine_tensor_bytes(job.model, rollout.dtype, rollout.tensor_parallel, shape.kv_heads)
    split_job = replace(
        job,
        model=replace(job.model, parameter_dtype=rollout.dtype),
        train=Train(sequence_length=rollout.max_model_len),
        parallel=Parallel(tp=Tp(degree=split)),
    )
    return EngineFigures(
        weight_tensors=tuple(sizes),
        kv_layers=shape.layers,
        activation_bytes=_activation_bytes(split_job, rollout, target or job.cluster.gpu.target),
        kv_token_bytes=shape.bytes_per_token(rollout.tensor_parallel, kept),
        assumed=assumed,
    )


def _activation_bytes(job: Job, rollout: Rollout, target: str) -> int:
    """From the beginning of the rollout to its peak, in bytes asked for."""
    with paper.gpu(target, torch_version=job.software.torch) as gpu:
        try:
            with (
                absent_peers.join(0, job.parallel.tp.degree),
                host_work.left_out() as host,
                dtensor_speed.once_for_all_parameters(),
            ):
                inference_engine.run(job, rollout, gpu.device, gpu.recorder, host)
                events = gpu.recorder.events()
        except (PlannerError, MemoryError):
            raise
        except Exception as error:
            raise failures.untraceable(error) from error
    alive: dict[int, int] = {}
    now = before = highest = 0
    for event in events:
        if isinstance(event, Alloc):
            alive[event.block] = event.requested_bytes
            now += event.requested_bytes
            highest = max(highest, now)
        elif isinstance(event, Free):
            now -= alive.pop(event.block)
        elif isinstance(event, Mark) and event.phase is Phase.ROLLOUT:
            before = highest = now
    return highest - before
