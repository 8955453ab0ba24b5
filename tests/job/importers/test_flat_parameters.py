"""FSDP 1 of accelerate, the Trainer, Axolotl and LLaMA-Factory: FullyShardedDataParallel, as each tool sets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from foreign_files import accelerate_config
from importing_folder import TORCHRUN, Folder

from planner.job.importers.fsdp import IGNORED_STRATEGY
from planner.job.parallel_schema import DpShard

WRAPPED = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
USUAL: dict[str, Any] = {
    "kind": "fsdp1", "use_orig_params": True, "sync_module_states": True, "backward_prefetch": "", "no_sync": True,
}  # fmt: skip
MIXED = {**USUAL, "reduce_dtype": "bfloat16", "autocast": True}


def of_accelerate(folder: Folder, settings: Mapping[str, Any], **changed: Any) -> Any:
    config = accelerate_config(
        folder.path / "accelerate.yaml", distributed_type="FSDP", fsdp_config=dict(settings), **changed
    )
    return folder.import_job(accelerate=config, job=folder.own_loop())


@pytest.mark.parametrize(
    ("settings", "shard"),
    [
        (WRAPPED, {}),
        ({"fsdp_version": 1}, {"wrap": "none"}),
        ({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 10_000}, {"wrap_size": 10_000}),
        ({"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"}, {"wrap": "none"}),
        ({**WRAPPED, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}, {"reshard_after_forward": False}),
        ({**WRAPPED, "fsdp_sharding_strategy": 3}, {"no_shard": True}),
        ({**WRAPPED, "fsdp_offload_params": True}, {"offload": "cpu"}),
        (
            {**WRAPPED, "fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_forward_prefetch": True,
             "fsdp_use_orig_params": False, "fsdp_sync_module_states": "no", "fsdp_limit_all_gathers": False},
            {"backward_prefetch": "BACKWARD_PRE", "forward_prefetch": True, "use_orig_params": False,
             "sync_module_states": False, "limit_all_gathers": False},
        ),
        ({**WRAPPED, "fsdp_backward_prefetch": 2}, {"backward_prefetch": "BACKWARD_POST"}),
    ],
)  # fmt: skip
def test_accelerates_settings_are_planned_as_they_are(
    folder: Folder, settings: Mapping[str, Any], shard: Mapping[str, Any]
) -> None:
    found = of_accelerate(folder, settings, mixed_precision="bf16")

    assert found.job.parallel.dp_shard == DpShard(degree=8, **{**MIXED, **shard})
    assert found.job.train.precision == "fsdp_mixed"
    assert not any("FSDP" in sentence for sentence in found.supposed)


def test_it_is_said_that_accelerate_does_not_look_at_the_strategy(folder: Folder) -> None:
    settings = {**WRAPPED, "fsdp_reshard_after_forward": "SHARD_GRAD_OP"}

    found = of_accelerate(folder, settings)

    assert found.job.parallel.dp_shard.reshard_after_forward is False
    assert IGNORED_STRATEGY in found.supposed


def test_the_trainer_asks_for_version_1(folder: Folder) -> None:
    written = {
        "bf16": True, "fsdp": "hybrid_shard auto_wrap",
        "fsdp_config": {"version": 1, "backward_prefetch": "backward_pre", "sync_module_states": False},
    }  # fmt: skip
    arguments = folder.write("args.json", written)

    shard = folder.import_job(training_arguments=arguments, torchrun=TORCHRUN).job.parallel.dp_shard

    assert shard == DpShard(degree=2, **{**MIXED, "sync_module_states": False, "backward_prefetch": "BACKWARD_PRE"})


def test_the_trainer_wraps_what_is_trained_of_an_adapter(folder: Folder) -> None:
    arguments = folder.write("args.json", {"fsdp": True, "fsdp_config": {"version": 1}})
    adapted = {"model": {"adapter": {"r": 4, "target_modules": ["q_proj"]}}}
    own = folder.write("job.yaml", adapted)

    job = folder.import_job(training_arguments=arguments, torchrun=TORCHRUN, job=own).job

    assert job.parallel.dp_shard == DpShard(degree=2, **USUAL, wrap_trained=True)
