"""The config that DeepSpeed's own engine is given: what the job's says, with every `"auto"` resolved.

Sizes are numbers of elements (DeepSpeed 0.19.8, deepspeed/runtime/zero/config.py). `"auto"` is what transformers'
Trainer makes of it (5.23, integrations/deepspeed.py): of the hidden size `h`, a reduce bucket of h * h, a prefetch
bucket of 0.9 * h * h, and parameters of up to 10 * h elements are not divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.job import deepspeed_config
from planner.job.schema import Job

_SIZES = {
    "prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "param_persistence_threshold": lambda hidden: 10 * hidden,
    "model_persistence_threshold": None,
    "max_live_parameters": None,
    "max_reuse_distance": None,
    "sub_group_size": None,
}
"""Keys in elements, each with what `"auto"` is; None where transformers resolves none."""
_ENGINE = ("communication_data_type", "data_types", "gradient_predivide_factor", "prescale_gradients")


def check(job: Job, place: str) -> None:
    """Raises SpecError at `place` for what is refused in stage 3."""
    zero = deepspeed_config.Part(job.parallel.deepspeed or {}, "", place).part("zero_optimization")
    _check_offload(zero.part("offload_param"))
    if zero.values.get("compute_grad_norm") is False:
        raise zero.error("compute_grad_norm", "is false", allowed="true in stage 3, as DeepSpeed has it")
    for key in ("module_granularity_threshold", "stage3_module_granularity_threshold", "leaf_module"):
        if zero.values.get(key):
            raise zero.error(key, "is not planned: modules that are gathered as one", remedy="delete it")
    sizes(zero, job)


def sizes(zero: deepspeed_config.Part, job: Job) -> dict[str, int]:
    """The keys in elements that the config names, by its own names for them. Raises SpecError."""
    found = {}
    for plain, automatic in _SIZES.items():
        for key in (plain, f"stage3_{plain}"):
            if key in zero.values:
                found[key] = deepspeed_config.elements(zero, key, job, least=0, automatic=automatic)
    return found


def engine_config(job: Job) -> dict[str, Any]:
    """For `deepspeed.initialize` with an optimizer of torch. Raises SpecError as `deepspeed_config.zero_of` does."""
    resolved = deepspeed_config.zero_of(job)
    config: Mapping[str, Any] = job.parallel.deepspeed or {}
    zero = deepspeed_config.Part(config, "", "parallel.deepspeed").part("zero_optimization")
    said = {key: value for key, value in zero.values.items() if value is not None and value != "auto"}
    made: dict[str, Any] = {key: config[key] for key in _ENGINE if config.get(key) is not None}
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if resolved.dtype == dtype:
            written = config.get(name) or (config.get("bfloat16") if name == "bf16" else None) or {}
            made[name] = {**{key: value for key, value in written.items() if value != "auto"}, "enabled": True}
    return {
        **made,
        "train_micro_batch_size_per_gpu": job.train.micro_batch_size,
        "gradient_accumulation_steps": job.train.gradient_accumulation_steps,
        "gradient_clipping": job.train.gradient_clipping,
        "zero_optimization": {**said, **sizes(zero, job), "reduce_bucket_size": resolved.reduce_bucket_elements},
        # The optimizer is torch's, whose fused kernel keeps what DeepSpeed's own keeps.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _check_offload(offload: deepspeed_config.Part) -> None:
    device = offload.values.get("device", "none")
    if device not in ("none", "cpu"):
        raise offload.error("device", f'is "{device}", which is not planned', allowed="none, cpu")
    offload.flag("pin_memory", True)
