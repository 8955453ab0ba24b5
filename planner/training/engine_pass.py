"""One forward of an inference engine at its largest batch, with its sampling: what it profiles its activations by.

vLLM runs its model on `max_num_batched_tokens` tokens, takes the logits of `max_num_seqs` of them and samples with
top-k and top-p (0.11, v1/worker/gpu_model_runner.py, profile_run and _dummy_sampler_run). Here the model is the
transformers one or the built-in decoder: what vLLM fuses (the projections, norms, activations) is separate, and
allocates in parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.events import Phase
from planner.job import schema
from planner.job.post_training_schema import Rollout
from planner.training.device_mesh import World
from planner.training.host import Host
from planner.training.materialize import materialize
from planner.training.models.build import build
from planner.training.models.decoder import Decoder
from planner.training.observer import Observer
from planner.training.wraps import tensor_parallel


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
    with torch.inference_mode():
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
