"""Recomputes activations: blocks drop them in the forward and compute them again in the backward.

`torch.utils.checkpoint` without reentrance, around the forward of each chosen block; names and hooks of modules stay
as they are.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from planner.errors import SpecError
from planner.job import schema
from planner.training import blocks

MODES = ("none", "full", "every", "selective")

_aten = torch.ops.aten
_MATMULS = (_aten.mm.default, _aten.addmm.default)
_SAVED = {
    *_MATMULS,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""What `selective` keeps: attention and every second matmul, the policy of torchtitan's operator-level checkpointing
(torchtitan/distributed/activation_checkpoint.py), with addmm beside mm for layers that have a bias."""


def apply(model: nn.Module, spec: schema.Recompute, pattern: str = "") -> list[str]:
    """Makes the chosen blocks recompute, in place; returns their paths.

    Raises SpecError for an unknown mode, or if the model has no blocks.
    """
    if spec.mode not in MODES:
        raise SpecError(f"unknown recompute {spec.mode!r}", allowed=", ".join(MODES), place="train.recompute")
    if spec.mode == "none":
        return []
    if spec.every < 1:
        raise SpecError(f"every {spec.every}", allowed="a whole number from 1", place="train.recompute.every")
    found = blocks.find(model, pattern)
    if not found:
        raise SpecError(
            f"no repeated layers are found in {type(model).__name__}",
            remedy="say which modules are recomputed in model.blocks",
            place="train.recompute",
        )
    # As torchtitan counts: with every 2, the second, the fourth, ...
    chosen = found[spec.every - 1 :: spec.every] if spec.mode == "every" else found
    for _, block in chosen:
        _wrap(block, selective=spec.mode == "selective")
    return [path for path, _ in chosen]


def _wrap(block: nn.Module, *, selective: bool) -> None:
    original = _without_its_block(block)

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if not block.training or not torch.is_grad_enabled():
            return original(*arguments, **keywords)
        if selective:
            return checkpoint(
                original, *arguments, use_reentrant=False, context_fn=_make_selective_contexts, **keywords
            )
        return checkpoint(original, *arguments, use_reentrant=False, **keywords)

    block.forward = forward


def _without_its_block(block: nn.Module) -> Callable[..., Any]:
    """The block's forward, of which compiled code does not ask whether it is this very block's: before torch 2.13 it
    asks so of methods (torch/_dynamo/variables/builder.py), and one code would not do for all blocks."""
    if not inspect.ismethod(block.forward):
        return block.forward
    function = block.forward.__func__

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return function(block, *arguments, **keywords)

    return forward


def _make_selective_contexts() -> Any:
    """Called for each forward, whether it is compiled or not: with a fresh count of matmuls, shared by nothing."""
    seen: Counter[bool] = Counter()
    return create_selective_checkpoint_contexts(partial(_keep_attention_and_every_second_matmul, seen))


def _keep_attention_and_every_second_matmul(
    seen: Counter[bool], context: Any, op: Any, *_arguments: Any, **_keywords: Any
) -> CheckpointPolicy:
    if op not in _SAVED:
        return CheckpointPolicy.PREFER_RECOMPUTE
    if op in _MATMULS:
        seen[context.is_recompute] += 1
        if seen[context.is_recompute] % 2 == 0:
            return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE
