"""Tells what stages of a pipeline (torch.distributed.pipelining) receive, and which gradients they add up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from planner import upstream
from planner.events import Category
from planner.training.observers import Observer, surrounded, tell_all_gradients, unless_silent
from planner.training.wraps import fsdp2

_SCHEDULES = "torch.distributed.pipelining.schedules"
_OF_STAGES = ("PipelineScheduleSingle", "PipelineScheduleMulti")
_STAGE = "torch.distributed.pipelining.stage:_PipelineStageBase"


def observe_pipelines(
    observer: Observer, *, begin_backward: Callable[[], object] = object, end_backwards: Callable[[], object] = object
) -> AbstractContextManager[None]:
    """Inside, the observer hears what a schedule is given, which storages stages take for what they receive, and of
    gradients of which no hook of autograd's hears. `end_backwards` is called when all backwards of an iteration have
    ended, and their gradients are reduced."""

    def tell_received(received: Any, name: str) -> None:
        for info in received:
            # Before torch 2.12 the first stage has a placeholder of the batch's tensors there.
            if getattr(info, "buffer", None) is not None:
                observer.assign(info.buffer, Category.COMMUNICATION, name)

    # Buffers stand since the first step; from torch 2.15 on each is there for one micro-batch.
    def tell_activations(_ops: Any, stage: Any, fwd_chunk_id: int) -> None:
        tell_received(stage.args_recv_info[fwd_chunk_id], "received activations")

    def tell_gradients(_ops: Any, stage: Any, bwd_chunk_id: int) -> None:
        tell_received(stage.grad_recv_info.get(bwd_chunk_id, ()), "received gradients")

    def tell_whole(_result: Any, stage: Any, *_arguments: Any, **_named: Any) -> None:
        fsdp2.tell_whole_gradients(stage.submod, observer)

    def tell_added_up(_result: Any, stage: Any, *_arguments: Any, **_named: Any) -> None:
        tell_all_gradients(stage.submod, observer)
        fsdp2.tell_whole_gradients(stage.submod, observer)

    def put_in_order(result: Any, stage: Any, *_arguments: Any, **_named: Any) -> None:
        _, groups = result
        _put_in_order(groups or [], stage.submod)

    def tell_batch(_schedule: Any, *arguments: Any, target: Any = None, **_named: Any) -> None:
        for leaf in tree_leaves((arguments, target)):
            if isinstance(leaf, Tensor):
                observer.assign(leaf, Category.INPUT)

    step = partial(surrounded, before=tell_batch, after=lambda *_arguments, **_named: end_backwards())
    wrapped = {
        f"{_STAGE}.get_fwd_recv_ops": partial(surrounded, after=tell_activations),
        f"{_STAGE}.get_bwd_recv_ops": partial(surrounded, after=tell_gradients),
        f"{_STAGE}.backward_one_chunk": partial(
            surrounded, before=lambda *_arguments, **_named: begin_backward(), after=tell_whole
        ),
        f"{_STAGE}.backward_weight_one_chunk": partial(surrounded, after=tell_added_up),
        f"{_STAGE}.backward_maybe_with_nosync": partial(surrounded, after=put_in_order),
        **{f"{_SCHEDULES}:{name}.step": step for name in _OF_STAGES},
    }
    return unless_silent(observer, upstream.patch_targets("pipelines told", wrapped=wrapped))


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
