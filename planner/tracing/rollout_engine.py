"""What an inference engine beside the trainer takes: parameters, a forward on the paper GPU, its KV cache."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner import paper  # before torch

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

from planner.errors import PlannerError, SpecError
from planner.events import Alloc, Free
from planner.job.schema import Job, Model, Parallel, Rollout, Tp, Train
from planner.tracing.rank_trace import EngineFigures
from planner.tracing.step_errors import untraceable
from planner.training import absent_peers, dtensor_speed
from planner.training.device_mesh import World
from planner.training.models.build import build, materialize
from planner.training.models.decoder import Decoder
from planner.training.wraps import tensor_parallel

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


def find_kv_shape(model: Model) -> KvShape:
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
    shape = find_kv_shape(job.model)
    kept = rollout.dtype if rollout.kv_cache_dtype == "auto" else rollout.kv_cache_dtype
    split = rollout.tensor_parallel if shape.latent_dim else math.gcd(shape.kv_heads, rollout.tensor_parallel)
    assumed: tuple[str, ...] = ()
    if split != rollout.tensor_parallel:
        assumed = (
            f"the engine's activations are those of {split} ranks, since fewer than {rollout.tensor_parallel} KV heads"
            " are not split further",
        )
    sizes = engine_tensor_bytes(job.model, rollout.dtype, rollout.tensor_parallel, shape.kv_heads)
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
            with absent_peers.join(0, job.parallel.tp.degree), dtensor_speed.cache_mesh_work():
                model = _load_engine(job, gpu.device)
                loaded = gpu.recorder.now()
                _run_engine(model, rollout, gpu.device)
                events = gpu.recorder.plain_events(loaded)
        except (PlannerError, MemoryError):
            raise
        except Exception as error:
            raise untraceable(error) from error
    alive: dict[int, int] = {}
    now = highest = 0
    for event in events:
        if isinstance(event, Alloc):
            alive[event.block] = event.requested_bytes
            now += event.requested_bytes
            highest = max(highest, now)
        elif isinstance(event, Free):
            now -= alive.pop(event.block)
    return highest


# Counted from the model's real parameters, built without memory; how they are joined and divided follows vLLM's layers
# (0.11, vllm/model_executor/layers): queries, keys and values are one tensor, gate and up another; columns and rows of
# linear layers, and the vocabulary padded to a multiple of 64 (vocab_parallel_embedding.py), are divided over the
# ranks; keys and values of fewer heads than ranks are there several times (linear.py, QKVParallelLinear); norms,
# routers, biases of row-parallel layers and the projections into a latent space are whole on every rank. A model with
# rotary positions has one table of sines and cosines (rotary_embedding.py).
_VOCABULARY_PADDING = 64
_WHOLE = re.compile(
    r"(^|\.)(router|gate\.weight|shared_expert_gate|q_a_proj|kv_a_proj_with_mqa|wpe|embed_positions|position_embeddings)"
)
_ROW_PARALLEL_BIAS = re.compile(r"(^|\.)(o_proj|down_proj|c_proj|out_proj|fc2|dense_4h_to_h|dense|o|down)\.bias$")
_HEAD = re.compile(r"(^|\.)(lm_head|head|embed_out)\.weight$")
_KEYS_AND_VALUES = re.compile(r"(^|\.)(k_proj|v_proj|k|v)\.(weight|bias)$")
_JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "q", "k", "v"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj", "up"), "gate_up"),
}


def engine_tensor_bytes(model: Model, dtype: str, tensor_parallel: int, kv_heads: int) -> list[int]:
    """Bytes of each tensor of one rank in `dtype`, in the order in which they are made."""
    kept = getattr(torch, dtype).itemsize
    module = build(replace(model, parameter_dtype=dtype), torch.device("meta"))
    embeddings = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    sizes: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        vocabulary = id(parameter) in embeddings or _HEAD.search(name) is not None
        share = _share(name, parameter, tensor_parallel, kv_heads, vocabulary=vocabulary)
        key = _joined(name)
        sizes[key] = sizes.get(key, 0) + share * kept
    # The table of a model with rotary positions: a sine and a cosine of half of the rotated width, for every position.
    widths = [buffer.numel() * 2 for name, buffer in module.named_buffers() if name.endswith("rotary_emb.inv_freq")]
    config: Any = getattr(module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    rotations = widths[0] * int(getattr(text, "max_position_embeddings", 0)) * kept if widths else 0
    return [*sizes.values(), *([rotations] if rotations else [])]


def _joined(name: str) -> str:
    *parents, own, kind = name.split(".") if name.count(".") else ("", name)
    together = "gate_up" if own == "gate" and parents[-1:] == ["ffn"] else _JOINED.get(own)
    return ".".join((*parents, together, kind)) if together else name


def _share(name: str, parameter: nn.Parameter, ranks: int, kv_heads: int, *, vocabulary: bool) -> int:
    whole = parameter.numel()
    is_norm = parameter.ndim == 1 and not name.endswith("bias")
    if vocabulary and not _WHOLE.search(name):
        rows = -(-parameter.shape[0] // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
        return -(-rows // ranks) * (whole // parameter.shape[0])
    if is_norm or _ROW_PARALLEL_BIAS.search(name) or (_WHOLE.search(name) and ".ffn.gate." not in f".{name}"):
        return whole
    if _KEYS_AND_VALUES.search(name):
        return whole // min(ranks, max(kv_heads, 1))
    return -(-whole // ranks)


# vLLM runs its model on `max_num_batched_tokens` tokens, takes the logits of `max_num_seqs` of them and samples with
# top-k and top-p (0.11, v1/worker/gpu_model_runner.py, profile_run and _dummy_sampler_run). Here the model is the
# transformers one or the built-in decoder: what vLLM fuses (the projections, norms, activations) is separate, and
# allocates in parts.
def _load_engine(spec: Job, device: torch.device) -> nn.Module:
    """The engine's model, split as `spec.parallel.tp` says. Raises SpecError for other models."""
    world = World.of(spec.parallel, 0, device)
    model = build(spec.model, torch.device("meta"))
    if world.degree("tp") > 1:
        tensor_parallel.split(model, spec.parallel.tp, world.device_mesh["tp"])
    materialize(model, device)
    return model.eval()


def _run_engine(model: nn.Module, rollout: Rollout, device: torch.device) -> None:
    tokens, longest = rollout.max_num_batched_tokens, rollout.max_model_len
    ids = torch.zeros((max(tokens // longest, 1), min(tokens, longest)), dtype=torch.int64).to(device)
    with torch.no_grad():  # as inference_mode for memory; in that DTensor of 2.6 splits no composite operators
        hidden, head = _hidden_states(model, ids)
        rows = hidden.flatten(0, -2)[: rollout.max_num_seqs]
        logits = head(rows.unsqueeze(0)).squeeze(0)
        del hidden, rows
        _sample(getattr(logits, "_local_tensor", logits).float())


def _hidden_states(model: nn.Module, ids: Tensor) -> tuple[Tensor, nn.Module]:
    if isinstance(model, Decoder):
        head, model.head = model.head, None
        hidden = model(ids)
        assert head is not None
        return hidden, head
    parts: Any = model
    decoder = parts.get_decoder() if hasattr(model, "get_decoder") else None
    head = parts.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if decoder is None or head is None or decoder is model:
        raise SpecError(
            f"{type(model).__name__} has no decoder with a head, so an engine's forward of it is not known",
            allowed="causal language models of transformers, and the built-in decoder",
            place="post_training.rollout",
        )
    return decoder(input_ids=ids, use_cache=False).last_hidden_state, head


def _sample(logits: Tensor) -> Tensor:
    """Top-k and top-p by sorting, as where no fused kernel is installed."""
    ordered, places = logits.sort(dim=-1)
    ordered = ordered.masked_fill(ordered < ordered[:, :1], float("-inf"))
    summed = ordered.softmax(dim=-1).cumsum(dim=-1)
    ordered = ordered.masked_fill(summed <= 0.1, float("-inf"))
    kept = torch.empty_like(ordered).scatter_(dim=-1, index=places, src=ordered)
    chances = kept.softmax(dim=-1)
    return chances.div_(torch.empty_like(chances).exponential_(1.0)).argmax(dim=-1)
