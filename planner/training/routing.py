"""Routes the tokens of a mixture to experts by a rule of the job, on every device alike.

A router decides by values, and how much memory the experts take hinges on its decision. So the step decides instead:
what the router chose is written over, in place, before the experts see it. Real runs and traces are then the same
program; the router itself, its weights and its gradients stay as they are.

The rule: of the token-expert pairs of a rank (tokens times experts per token) the fullest part gets `imbalance` times
the mean, rounded up; the others share the rest as evenly as whole numbers can, the first of them the larger shares.
The parts are the ranks along `ep`, or the experts themselves where nothing is split; the experts of one rank share
alike. No token goes to the same expert twice, and none is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.job import schema

_PLACE = "parallel.ep.imbalance"
_CHOICE = "top_k_index"
"""What the forward of transformers' experts calls the router's choice (5.23, integrations/moe.py)."""


def experts_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Paths and modules of transformers' experts (`use_experts_implementation`, 5.23)."""
    for path, module in model.named_modules():
        if hasattr(module, "_is_expert_parallel") and hasattr(module, "num_experts"):
            yield path, module


def force(model: nn.Module, spec: schema.Ep, fullest: int = 0) -> None:
    """From now on the model's experts get the tokens that the rule gives them; `fullest` is the fullest rank.

    Raises SpecError for an imbalance that was asked for a model without experts; the forward raises it for one that
    cannot be: a token goes to an expert only once.
    """
    found = list(experts_of(model))
    if not found and spec.imbalance != 1.0:
        raise SpecError(
            f"{type(model).__name__} has no experts that tokens could be routed to",
            allowed="1, or the config of a transformers mixture of experts",
            place=_PLACE,
        )
    for _, module in found:
        # Split experts count their own only.
        experts = int(module.num_experts) * (spec.degree if module._is_expert_parallel else 1)
        module.register_forward_pre_hook(_RoutingHook(experts, spec, fullest), with_kwargs=True)


def choices(tokens: int, each: int, experts: int, spec: schema.Ep, fullest: int = 0) -> Tensor:
    """The experts of every token, on the host, of shape (tokens, each): by the rule, whatever the values are."""
    counts = shares(tokens, each, experts, spec, fullest)
    one_after_another = torch.repeat_interleave(torch.arange(experts), torch.tensor(counts))
    # An expert's run is no longer than the tokens: wrapped around them it never meets the same token again.
    return one_after_another.view(each, tokens).t().contiguous()


def shares(tokens: int, each: int, experts: int, spec: schema.Ep, fullest: int = 0) -> list[int]:
    """How many tokens each expert gets. Raises SpecError if the fullest would get more than there can be."""
    pairs, parts = tokens * each, spec.degree if spec.degree > 1 else experts
    per_part = experts // parts
    full = min(math.ceil(spec.imbalance * pairs / parts), pairs)
    most = min(pairs, per_part * tokens)
    if full > most:
        part_of_all = "rank" if spec.degree > 1 else "expert"
        raise SpecError(
            f"of {pairs} pairs of token and expert the fullest {part_of_all} would get {full} at an imbalance of "
            f"{spec.imbalance:g}, and a token goes to an expert only once",
            allowed=f"1 to {most * parts / pairs:g}",
            place=_PLACE,
        )
    rest = iter(_split_evenly(pairs - full, parts - 1))
    of_parts = [full if part == fullest else next(rest) for part in range(parts)]
    return [share for part in of_parts for share in _split_evenly(part, per_part)]


def _split_evenly(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


class _RoutingHook:
    """A hook before the forward of experts."""

    def __init__(self, experts: int, spec: schema.Ep, fullest: int) -> None:
        self._experts, self._spec, self._fullest = experts, spec, fullest

    def __call__(self, _module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        chosen: Tensor = named[_CHOICE] if _CHOICE in named else arguments[1]
        tokens, each = chosen.shape
        # Not through autograd: the backward of topk may keep the tensor, whose values are not differentiated.
        chosen.data.copy_(_choices(tokens, each, self._experts, self._spec, self._fullest))


@lru_cache(maxsize=4)
def _choices(tokens: int, each: int, experts: int, spec: schema.Ep, fullest: int) -> Tensor:
    return choices(tokens, each, experts, spec, fullest)
