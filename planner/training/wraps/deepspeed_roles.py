"""Tells an observer what DeepSpeed's tensors are for (DeepSpeed 0.19.8, deepspeed/runtime/zero)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from planner import upstream
from planner.events import Category
from planner.training.observer import NullObserver, Observer

_ZERO = "deepspeed.runtime.zero"
_COORDINATOR = f"{_ZERO}.partitioned_param_coordinator:PartitionedParameterCoordinator"
_STAGE_3 = f"{_ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3"
_STAGES_1_AND_2 = f"{_ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer"
_COMMUNICATING = (
    f"{_COORDINATOR}._PartitionedParameterCoordinator__all_gather_params_",
    f"{_STAGE_3}._DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads",
    f"{_STAGE_3}._DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads",
)
"""Methods that allocate what is sent and received."""


@contextmanager
def observe_deepspeed(observer: Observer) -> Iterator[None]:
    """Inside, the observer hears what the engine's optimizer allocates in a step, and what it is for."""
    if isinstance(observer, NullObserver):
        yield
        return
    wrapped: dict[str, Callable[[Any], Any]] = {
        target: partial(_communicating, observer=observer) for target in _COMMUNICATING
    }
    wrapped |= {
        f"{_STAGES_1_AND_2}.setup_buckets": partial(_then, tell=partial(_tell_buckets, observer)),
        f"{_STAGES_1_AND_2}.copy_grads_in_partition": partial(_then, tell=partial(_tell_partition, observer)),
        f"{_STAGES_1_AND_2}._build_compact_grad_partition_buffer": partial(_telling_built, observer=observer),
        f"{_STAGES_1_AND_2}._optimizer_step": partial(_telling_before_the_step, observer=observer),
    }
    with upstream.patch_targets("deepspeed roles", wrapped=wrapped):
        yield


def tell_parameters(model: nn.Module, observer: Observer) -> None:
    """The parameters of a model that the engine is about to take, and from then on their gradients."""
    for name, parameter in model.named_parameters():
        divided = getattr(parameter, "ds_tensor", None)
        if divided is not None:
            observer.assign(divided, Category.PARAMETER, name)
        if parameter.requires_grad:
            # Before the engine's own hook, which takes the gradient away.
            parameter.register_post_accumulate_grad_hook(partial(_tell_gradient, observer, name))


def tell_flat(divided: Any, observer: Observer) -> None:
    """Where the engine's optimizer keeps the parameters and this rank's partitions."""
    if hasattr(divided, "bit16_groups_flat"):
        _tell_flat_of_stages_1_and_2(divided, observer)
    else:
        _tell_flat_of_stage_3(divided, observer)


def tell_whole(engine: Any, observer: Observer) -> None:
    """Under stage 3, parameters that are too small to be divided: from their first use on they stay whole."""
    for parameter in getattr(engine.optimizer, "persistent_parameters", ()):
        observer.assign(parameter.data, Category.PARAMETER, "deepspeed.persistent")


def tell_state(engine: Any, observer: Observer) -> None:
    """What the optimizer inside the engine's keeps of this rank's partitions."""
    inside: torch.optim.Optimizer = engine.optimizer.optimizer
    for state in inside.state.values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                observer.assign(value, Category.OPTIMIZER_STATE, f"deepspeed.{key}")


def _tell_gradient(observer: Observer, name: str, parameter: Tensor) -> None:
    if parameter.grad is not None:
        observer.assign(parameter.grad, Category.GRADIENT, name)


def _tell_flat_of_stages_1_and_2(divided: Any, observer: Observer) -> None:
    for flat in divided.bit16_groups_flat:
        observer.assign(flat, Category.PARAMETER, "deepspeed.flat")
    if divided.cpu_offload:
        observer.assign(divided.temp_grad_buffer_for_gpu_offload, Category.BUCKET, "deepspeed.offload")
        _tell_offloaded_of_stages_1_and_2(divided, observer)
        return
    for partition in divided.single_partition_of_fp32_groups:
        observer.assign(partition, Category.OPTIMIZER_STATE, "deepspeed.fp32_partition")


def _tell_offloaded_of_stages_1_and_2(divided: Any, observer: Observer) -> None:
    """What rests on the host: master weights with their gradients, and buffers on the way there and back."""
    for partition in divided.single_partition_of_fp32_groups:
        observer.assign(partition, Category.OPTIMIZER_STATE, "deepspeed.fp32_partition")
        if partition.grad is not None:
            observer.assign(partition.grad, Category.GRADIENT, "deepspeed.fp32_partition")
    for buffer in divided.param_buffer_of_bit16_for_cpu_offload_groups:
        observer.assign(buffer, Category.PARAMETER, "deepspeed.offload")
    observer.assign(divided.temp_grad_buffer_for_cpu_offload, Category.BUCKET, "deepspeed.offload")


def _tell_flat_of_stage_3(divided: Any, observer: Observer) -> None:
    for flat in divided.fp16_partitioned_groups_flat:
        observer.assign(flat, Category.PARAMETER, "deepspeed.partitions")
    for flat in divided.fp32_partitioned_groups_flat:
        observer.assign(flat, Category.OPTIMIZER_STATE, "deepspeed.fp32_partitions")
        if flat.grad is not None:
            observer.assign(flat.grad, Category.GRADIENT, "deepspeed.fp32_partitions")
    for flat in divided.param_groups_fp16_flat_cpu_memory:
        observer.assign(flat, Category.PARAMETER, "deepspeed.offload")
    observer.assign(divided.grad_partitions_flat_buffer, Category.GRADIENT, "deepspeed.partitions")
    _tell_buckets(observer, divided)


def _tell_buckets(observer: Observer, divided: Any) -> None:
    """One buffer to each dtype, or several where communication overlaps."""
    for bucket in divided.ipg_buckets.values():
        for buffer in bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer]:
            if buffer is not None:
                observer.assign(buffer, Category.BUCKET, "deepspeed.ipg")


def _tell_partition(observer: Observer, divided: Any) -> None:
    for buffer in getattr(divided, "accumulated_grads_in_cpu", {}).values():
        observer.assign(buffer, Category.GRADIENT, "deepspeed.accumulated")
    if divided.grads_in_partition is not None:
        observer.assign(divided.grads_in_partition, Category.GRADIENT, "deepspeed.partition")


def _communicating(method: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    name = method.__name__.strip("_")

    @wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        with observer.region(Category.COMMUNICATION, f"deepspeed.{name}"):
            return method(*arguments, **named)

    return wrapper


def _then(method: Callable[..., Any], tell: Callable[[Any], None]) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> Any:
        result = method(self, *arguments, **named)
        tell(self)
        return result

    return wrapper


def _telling_built(method: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        built = method(*arguments, **named)
        observer.assign(built.flat_partition, Category.GRADIENT, "deepspeed.fp32_partition")
        return built

    return wrapper


def _telling_before_the_step(method: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, group: int) -> Any:
        gradient = self.single_partition_of_fp32_groups[group].grad
        if gradient is not None and not self.cpu_offload:
            observer.assign(gradient, Category.GRADIENT, "deepspeed.fp32_partition")
        return method(self, group)

    return wrapper
