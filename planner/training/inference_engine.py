"""An inference engine on one of its ranks: the tensors of its parameters, and one forward at its largest batch."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.events import Phase
from planner.job import schema
from planner.job.schema import Rollout
from planner.training.device_mesh import World
from planner.training.host import Host
from planner.training.models.build import build, materialize
from planner.training.models.decoder import Decoder
from planner.training.observers import Observer
from planner.training.wraps import tensor_parallel

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


def engine_tensor_bytes(model: schema.Model, dtype: str, tensor_parallel: int, kv_heads: int) -> list[int]:
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
    """The tensor of which a parameter is a part."""
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
def run(spec: schema.Job, rollout: Rollout, device: torch.device, observer: Observer, host: Host) -> None:
    """Load the engine's model, split as `spec.parallel.tp` says, and run it once. Raises SpecError for other models."""
    world = World.of(spec.parallel, 0, device)
    observer.mark(Phase.LOAD, 0)
    model = build(spec.model, torch.device("meta"))
    if world.degree("tp") > 1:
        tensor_parallel.split(model, spec.parallel.tp, world.device_mesh["tp"])
    materialize(model, device, host)
    model.eval()
    observer.mark(Phase.ROLLOUT, 0)
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
