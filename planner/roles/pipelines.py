"""Names what stages of a pipeline (torch.distributed.pipelining) receive, and the gradients that they add up."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from planner import upstream
from planner.events import Category
from planner.roles.recording import RoleRecorder, surrounded
from planner.roles.sharding import assign_whole_gradients

PACKAGE = "torch.distributed.pipelining"
_SCHEDULES = f"{PACKAGE}.schedules"
_OF_STAGES = ("PipelineScheduleSingle", "PipelineScheduleMulti")
_STAGE = f"{PACKAGE}.stage:_PipelineStageBase"


def watch_stages(recorder: RoleRecorder) -> AbstractContextManager[None]:
    """Inside, the recorder hears what a schedule is given, which storages stages take for what they receive, and of
    gradients of which no hook of autograd's hears."""

    def assign_received(received: Any, name: str) -> None:
        for info in received:
            # Before torch 2.12 the first stage has a placeholder of the batch's tensors there.
            if getattr(info, "buffer", None) is not None:
                recorder.assign(info.buffer, Category.COMMUNICATION, name)

    # Buffers stand since the first step; from torch 2.15 on each is there for one micro-batch.
    def name_activations(_ops: Any, stage: Any, fwd_chunk_id: int) -> None:
        assign_received(stage.args_recv_info[fwd_chunk_id], "received activations")

    def name_gradients(_ops: Any, stage: Any, bwd_chunk_id: int) -> None:
        assign_received(stage.grad_recv_info.get(bwd_chunk_id, ()), "received gradients")

    def name_whole(_result: Any, stage: Any, *_arguments: Any, **_named: Any) -> None:
        assign_whole_gradients(stage.submod, recorder)

    def name_added_up(_result: Any, stage: Any, *_arguments: Any, **_named: Any) -> None:
        """Those that are added up where a backward is split (torch 2.13, `_backward.py`, stage_backward_weight)."""
        for name, parameter in stage.submod.named_parameters():
            if parameter.grad is not None:
                recorder.assign(parameter.grad, Category.GRADIENT, name)
        assign_whole_gradients(stage.submod, recorder)

    def put_in_order(result: Any, stage: Any, *_arguments: Any, **_named: Any) -> None:
        _, groups = result
        _put_in_order(groups or [], stage.submod)

    def name_batch(_schedule: Any, *arguments: Any, target: Any = None, **_named: Any) -> None:
        for leaf in tree_leaves((arguments, target)):
            if isinstance(leaf, Tensor):
                recorder.assign(leaf, Category.INPUT)

    wrapped: dict[str, upstream.Wrapper] = {
        f"{_STAGE}.get_fwd_recv_ops": partial(surrounded, after=name_activations),
        f"{_STAGE}.get_bwd_recv_ops": partial(surrounded, after=name_gradients),
        f"{_STAGE}.backward_one_chunk": partial(surrounded, after=name_whole),
        f"{_STAGE}.backward_weight_one_chunk": partial(surrounded, after=name_added_up),
        f"{_STAGE}.backward_maybe_with_nosync": partial(surrounded, after=put_in_order),
        **{f"{_SCHEDULES}:{name}.step": partial(surrounded, before=name_batch) for name in _OF_STAGES},
    }
    return upstream.when_imported({PACKAGE: lambda: upstream.patch_targets("pipeline roles", wrapped=wrapped)})


def _put_in_order(groups: list[dict[str, Any]], module: nn.Module) -> None:
    """Parameters whose gradients are still to be computed, as the module has them.

    torch walks over sets of autograd's nodes here (torch 2.13, pipelining/_backward.py), whose order depends on
    addresses: the same step would allocate in another order in each run.
    """
    from torch.distributed.pipelining._backward import _get_grad_fn_or_grad_acc  # which pipelines alone pay for

    place = {_get_grad_fn_or_grad_acc(weight): index for index, weight in enumerate(module.parameters())}
    for group in groups:
        group["params"] = sorted(group["params"], key=lambda node: place.get(node, len(place)))
        if "grads" in group:
            pairs = sorted(
                zip(group["intermediates"], group["grads"], strict=True), key=lambda pair: pair[0]._sequence_nr()
            )
            group["intermediates"], group["grads"] = ([pair[side] for pair in pairs] for side in (0, 1))
    groups.sort(key=lambda group: min((place.get(node, len(place)) for node in group["params"]), default=len(place)))
