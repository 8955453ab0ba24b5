"""What a mixture of experts reads of the choice of its router, where the step has written over that choice.

The step routes by the job's rule: it copies the experts of every token from the host, and values that came from the
host are known. What transformers 5.23 counts from them on the device is counted here once more, at the few places where
it comes back to the host or sizes a result (integrations/moe.py, distributed/expert_parallel.py, the `forward` of
experts in models/*/modeling_*.py). In torchtitan's experts over ranks, each gets as many tokens as the others. A
choice that is not known stays unanswered.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

Tensor = torch.Tensor

_MODELS, _MOE = "transformers.models.", "transformers.integrations.moe"
_PARALLEL = "transformers.distributed.expert_parallel"
_TORCHTITAN = "torchtitan.distributed.expert_parallel"


def numbers(frame: FrameType, wanted: int) -> Tensor | None:
    """The whole numbers that are copied to the host at this call site; None if it is none of those."""
    module, values = _module(frame), frame.f_locals
    if module == _MOE and "offs" in values:
        return _equal_shares(int(values["input"].size(0)), wanted)
    if module == _PARALLEL and "recv_counts" in values:
        return _sent_and_received(values)
    if module == _TORCHTITAN and "routed_input" in values:
        tokens = int(values["routed_input"].size(0))
        return _equal_shares(tokens, wanted).diff(prepend=torch.zeros(1, dtype=torch.int64))
    return None


def places(frame: FrameType, tensor: Tensor) -> Tensor | None:
    """The coordinates that `nonzero` finds in the loop over experts: those with tokens, then the tokens of each."""
    chosen = _choice(frame)
    if chosen is None:
        return None
    values = frame.f_locals
    if "expert_hit" not in values:
        hit: Tensor = chosen.unique().unsqueeze(1)
        return hit
    expert = _read_known_value(values["expert_idx"])
    return None if expert is None else torch.zeros(int((chosen == expert).sum()), tensor.dim(), dtype=torch.int64)


def chooses(frame: FrameType) -> bool:
    """Whether this is the loop over experts, which asks of each whether it is one."""
    return _choice(frame) is not None


def _choice(frame: FrameType) -> Tensor | None:
    if not _module(frame).startswith(_MODELS) or "expert_mask" not in frame.f_locals:
        return None
    return _read_known_value(frame.f_locals.get("top_k_index"))


def _sent_and_received(values: dict[str, Any]) -> Tensor | None:
    """How many rows go to each rank and come from each; peers route as this rank does, and are as full."""
    chosen, parallel = _read_known_value(values["top_k_index"]), values["self"]
    if chosen is None:
        return None
    ranks, own = parallel.ep_mesh.size(), parallel.ep_mesh.get_local_rank()
    sent = chosen.flatten().bincount(minlength=ranks * parallel.num_local_experts).view(ranks, -1).sum(1)
    return torch.stack([sent, sent[own].expand(ranks)])


def _equal_shares(tokens: int, experts: int) -> Tensor:
    """Where each expert's tokens end if all get the same; how they are shared takes no memory here."""
    return torch.tensor([tokens * (expert + 1) // experts for expert in range(experts)])


def _read_known_value(tensor: Any) -> Tensor | None:
    if not isinstance(tensor, Tensor) or not tensor.is_cuda:
        return None
    found: Tensor | None = torch.ops.paper.known_value(tensor)
    return found


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
