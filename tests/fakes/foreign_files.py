"""Files as the installed programs themselves write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accelerate.commands.config.config_args import ClusterConfig
from transformers import TrainingArguments


def training_arguments(**changed: Any) -> str:
    """`TrainingArguments(...).to_json_string()`.

    bf16 and use_cpu are put in afterwards: on a machine without a GPU the class refuses the one without the other.
    """
    late = {name: changed.pop(name) for name in ("bf16", "fp16", "deepspeed") if name in changed}
    written = json.loads(TrainingArguments(output_dir="out", **changed).to_json_string())
    return json.dumps({**written, **late}, indent=2)


def accelerate_config(path: Path, **changed: Any) -> Path:
    """What the questionnaire of `accelerate config` saves for eight GPUs of one machine in bf16."""
    usual: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "mixed_precision": "bf16",
        "use_cpu": False, "debug": False, "num_processes": 8, "machine_rank": 0, "num_machines": 1,
        "main_training_function": "main", "rdzv_backend": "static", "same_network": True, "gpu_ids": "all",
    }  # fmt: skip
    ClusterConfig(**{**usual, **changed}).to_yaml_file(path)
    return path


FSDP_1 = {
    "fsdp_version": 1, "fsdp_sharding_strategy": "FULL_SHARD", "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
    "fsdp_use_orig_params": True, "fsdp_forward_prefetch": False, "fsdp_offload_params": False,
    "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_cpu_ram_efficient_loading": False,
    "fsdp_sync_module_states": False, "fsdp_activation_checkpointing": False,
}  # fmt: skip
"""The questionnaire's answers for FSDP 1."""
FSDP_2 = {
    "fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
    "fsdp_state_dict_type": "SHARDED_STATE_DICT", "fsdp_cpu_ram_efficient_loading": False,
    "fsdp_activation_checkpointing": False,
}  # fmt: skip
"""The questionnaire's answers for FSDP 2."""
