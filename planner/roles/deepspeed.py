"""What DeepSpeed's engines allocate is for: parameters, gradients, partitions, buckets and states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from planner import upstream
from planner.events import Category
from planner.roles.recording import RoleRecorder, in_region, surrounded

ZERO = "deepspeed.runtime.zero"
ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_COORDINATOR = f"{ZERO}.partitioned_param_coordinator:PartitionedParameterCoordinator"
_STAGE_3 = f"{ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3"
_STAGES_1_AND_2 = f"{ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer"
_COMMUNICATING = (
    f"{_COORDINATOR}._PartitionedParameterCoordinator__all_gather_params_",
    f"{_STAGE_3}._DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads",
    f"{_STAGE_3}._DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads",
)
"""Methods that allocate what is sent and received."""
_KEPT = {
    # stages 1 and 2
    "bit16_groups_flat": (Category.PARAMETER, "flat"),
    "param_buffer_of_bit16_for_cpu_offload_groups": (Category.PARAMETER, "offload"),
    "single_partition_of_fp32_groups": (Category.OPTIMIZER_STATE, "fp32_partition"),
    "temp_grad_buffer_for_gpu_offload": (Category.BUCKET, "offload"),
    "temp_grad_buffer_for_cpu_offload": (Category.BUCKET, "offload"),
    # stage 3
    "fp16_partitioned_groups_flat": (Category.PARAMETER, "partitions"),
    "param_groups_fp16_flat_cpu_memory": (Category.PARAMETER, "offload"),
    "fp32_partitioned_groups_flat": (Category.OPTIMIZER_STATE, "fp32_partitions"),
    "grad_partitions_flat_buffer": (Category.GRADIENT, "partitions"),
    # stage 0 of 16 bits
    "fp16_groups_flat": (Category.PARAMETER, "flat"),
    "bf16_groups_flat": (Category.PARAMETER, "flat"),
    "fp32_groups": (Category.OPTIMIZER_STATE, "fp32"),
    "fp32_groups_flat": (Category.OPTIMIZER_STATE, "fp32"),
    "fp32_groups_flat_partition": (Category.OPTIMIZER_STATE, "fp32_partition"),
    "fp32_groups_gradients_flat": (Category.GRADIENT, "fp32"),
}
"""Attributes in which an engine's optimizer keeps tensors (DeepSpeed 0.19.8: stage_1_and_2.py, stage3.py,
fp16/fused_optimizer.py, fp16/unfused_optimizer.py, bf16_optimizer.py)."""


def watch_engines(recorder: RoleRecorder) -> AbstractContextManager[None]:
    """Inside, the recorder hears what engines and their optimizers allocate. Imports DeepSpeed."""

    def assign(category: Category, name: str, tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, Tensor):
                recorder.assign(tensor, category, name)

    def assigning(when: str, category: Category, name: str, find: Callable[..., Any]) -> Callable[[Any], Any]:
        """`find` is given what functions are that `surrounded` calls."""
        return partial(
            surrounded, **{when: lambda *given, **_named: assign(category, f"deepspeed.{name}", find(*given))}
        )

    def communicating(method: Callable[..., Any]) -> Callable[..., Any]:
        return in_region(method, recorder, Category.COMMUNICATION, f"deepspeed.{method.__name__.strip('_')}")

    def assign_parameters(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            assign(Category.PARAMETER, name, [parameter, getattr(parameter, "ds_tensor", None)])

    def take_model(_engine: Any, *arguments: Any, **named: Any) -> None:
        """As it is before the engine casts and moves it."""
        assign_parameters(named["model"] if "model" in named else arguments[1])

    def follow_gradients(engine: Any, *_arguments: Any) -> None:
        """By hooks before the engine's own, which take gradients away."""
        assign_parameters(engine.module)
        for name, parameter in engine.module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(accumulated, name))

    def accumulated(name: str, parameter: Tensor) -> None:
        assign(Category.GRADIENT, name, parameter.grad)

    def assign_kept(_result: None, engine: Any, *_arguments: Any, **_named: Any) -> None:
        for attribute, (category, name) in _KEPT.items():
            kept = tree_leaves(getattr(engine.optimizer, attribute, None))
            assign(category, f"deepspeed.{name}", kept)
            if category is Category.OPTIMIZER_STATE:
                assign(Category.GRADIENT, f"deepspeed.{name}", [getattr(master, "grad", None) for master in kept])
        assign(Category.BUCKET, "deepspeed.ipg", _buckets(engine.optimizer))

    def assign_whole(engine: Any, *_arguments: Any, **_named: Any) -> None:
        """Under stage 3, parameters that are too small to be divided: from their first use on they stay whole."""
        whole = [parameter.data for parameter in getattr(engine.optimizer, "persistent_parameters", ())]
        assign(Category.PARAMETER, "deepspeed.persistent", whole)

    def assign_state(_result: None, engine: Any, *_arguments: Any, **_named: Any) -> None:
        """What the optimizer inside the engine's keeps of this rank's partitions."""
        for state in getattr(engine.optimizer, "optimizer", engine.optimizer).state.values():
            for key, value in state.items():
                assign(Category.OPTIMIZER_STATE, f"deepspeed.{key}", value)

    wrapped: dict[str, upstream.Wrapper] = {
        f"{ENGINE}.__init__": partial(surrounded, before=take_model, after=assign_kept),
        f"{ENGINE}._configure_optimizer": partial(surrounded, before=follow_gradients),
        f"{ENGINE}.step": partial(surrounded, before=assign_whole, after=assign_state),
        **dict.fromkeys(_COMMUNICATING, communicating),
        f"{_STAGE_3}._create_fp16_partitions_with_defragmentation": assigning(
            "before",
            Category.PARAMETER,
            "partitions",
            lambda _divided, groups: [getattr(member, "ds_tensor", None) for member in tree_leaves(groups)],
        ),
        f"{_STAGE_3}._optimizer_step": assigning(
            "before",
            Category.GRADIENT,
            "fp32_partitions",
            lambda divided, group: divided.fp32_partitioned_groups_flat[group].grad,
        ),
        f"{_STAGES_1_AND_2}.setup_buckets": assigning(
            "after", Category.BUCKET, "ipg", lambda _result, divided: _buckets(divided)
        ),
        f"{_STAGES_1_AND_2}.copy_grads_in_partition": assigning(
            "after",
            Category.GRADIENT,
            "partition",
            lambda _result, divided, *_: [divided.grads_in_partition, *_accumulated_on_host(divided)],
        ),
        f"{_STAGES_1_AND_2}._build_compact_grad_partition_buffer": assigning(
            "after", Category.GRADIENT, "fp32_partition", lambda built, *_: built.flat_partition
        ),
        f"{_STAGES_1_AND_2}._optimizer_step": assigning(
            "before",
            Category.GRADIENT,
            "fp32_partition",
            lambda divided, group: divided.single_partition_of_fp32_groups[group].grad,
        ),
    }
    return upstream.patch_targets("deepspeed roles", wrapped=wrapped)


def _buckets(divided: Any) -> list[Any]:
    return [bucket.buffer for bucket in getattr(divided, "ipg_buckets", {}).values()]


def _accumulated_on_host(divided: Any) -> list[Any]:
    return list(getattr(divided, "accumulated_grads_in_cpu", {}).values())
