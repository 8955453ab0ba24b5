"""What training in a world of ranks relies on in torch: process groups, DDP, FSDP2, DTensor, pipelines, checkpoints."""

from __future__ import annotations

from functools import partial

from planner.upstream import entries as listing
from planner.upstream.entries import Change, Entry, Kind, entries

_ABSENT = "tests/measuring/test_absent_peers.py"
_SHARDED = "tests/traces/test_sharded_cpu_runs.py"
_SPLIT = "tests/traces/test_split_cpu_runs.py"
_SPEED = "tests/traces/test_dtensor_speed.py"
_CHUNKS = "tests/traces/test_shard_chunks.py"
_PIPELINES = "tests/traces/test_pipelined_cpu_runs.py"
_REPLICATED = "tests/traces/test_against_cpu_runs.py"
_FSDP = "torch.distributed.fsdp._fully_shard"
_DTENSOR = "torch.distributed.tensor"

ABSENT_PEERS = (
    Entry(
        target="torch.nn.parallel.distributed:DistributedDataParallel._check_comm_hook", kind=Kind.PATCH,
        group="absent peers", test=_ABSENT, why="asks for NCCL before it takes a hook that compresses to bfloat16",
    ),
    Entry(
        target="torch.amp.grad_scaler:GradScaler._unscale_grads_", kind=Kind.PATCH, group="every step is taken",
        test=_ABSENT,
        why="what absent peers did not send must not skip the step in which the optimizer's state is born",
    ),
    Entry(
        target="torch._C._distributed_c10d:FakeProcessGroup._create_internal", kind=Kind.PRIVATE, has_source=False,
        optional=True, test=_ABSENT, why="gathers are torch's own fake group's (by its constructor up to 2.9)",
    ),
    Entry(
        target="torch._C._distributed_c10d:_create_work_from_future", kind=Kind.PRIVATE, has_source=False,
        test=_ABSENT, why="the reducer takes its bucket from the work's future",
    ),
    Entry(
        target="torch.testing._internal.distributed.fake_pg:FakeStore", kind=Kind.PRIVATE, has_source=False,
        test=_ABSENT, why="a store in which nobody waits for anybody",
    ),
    *entries(
        "torch.distributed", "ProcessGroup._set_group_name", "ProcessGroup._set_group_desc",
        "ProcessGroup._device_types",
        kind=Kind.OVERRIDE, has_source=False, test=_ABSENT,
        why="a group in Python has no backends, which keep its name since torch 2.13 (c10d/ProcessGroup.cpp)",
    ),
)  # fmt: skip

_RUN = "tests/running/test_programs_in_a_world.py"
_RESUMED = "tests/bound/test_lower_bound.py"
_C10D = "torch.distributed.distributed_c10d"

PROGRAM_PEERS = (
    Entry(
        target=f"{_C10D}:_new_process_group_helper", kind=Kind.PATCH, group="program peers", test=_RUN,
        why="a program's groups are made there, of every backend: theirs are absent peers",
    ),
    Entry(
        target=f"{_C10D}:rendezvous", kind=Kind.PATCH, group="program peers", has_source=False, test=_RUN,
        why="waits for all ranks of the world (torch/distributed/rendezvous.py)",
    ),
    Entry(
        target=f"{_C10D}:_NCCL_AVAILABLE", kind=Kind.PATCH, group="program peers", has_source=False, test=_RUN,
        why="programs ask whether NCCL is there before they use it (is_nccl_available)",
    ),
    Entry(
        target=f"{_C10D}:_get_object_coll_device", kind=Kind.PATCH, group="program peers", test=_RUN,
        why="objects travel as bytes, which tensors of a paper GPU do not have: on the host they do",
    ),
    *(
        Entry(
            target=f"{_C10D}:_maybe_attach_flight_recorder", kind=Kind.PATCH, group=group, has_source=False,
            optional=True, test=test, why="a recorder of collectives asks for the backends of a group (torch 2.15)",
        )
        for group, test in (("program peers", _RUN), ("absent peers", _RESUMED))
    ),
    *(
        Entry(
            target=f"{module}:ProcessGroupNCCL", kind=Kind.PATCH, group="program peers", has_source=False,
            created=True, test=_RUN, why="programs set its options; a build without CUDA does not have it",
        )
        for module in (_C10D, "torch.distributed")
    ),
    Entry(
        target="torch.distributed:TCPStore", kind=Kind.PATCH, group="program peers", has_source=False, test=_RUN,
        why="its first process waits for all the others",
    ),
    Entry(
        target="torch.nn.parallel.distributed:DistributedDataParallel._check_comm_hook", kind=Kind.PATCH,
        group="program peers", test=_ABSENT, why="asks for NCCL before it takes a hook that compresses to bfloat16",
    ),
    *(
        Entry(
            target=f"{module}:{name}", kind=Kind.PATCH, group="program peers", has_source=module == _C10D,
            test=_RUN, why="what an absent peer would have sent is not known, and its place stays as it is",
        )
        for name in ("broadcast_object_list", "scatter_object_list")
        for module in (_C10D, "torch.distributed")
    ),
    *(
        Entry(
            target=f"{module}:{name}", kind=Kind.PATCH, group="program peers", has_source=False, test=_RUN,
            why="what an absent peer would have sent is not known, nor who of all would have sent",
        )
        for name in ("recv_object_list", "recv")
        for module in (_C10D, "torch.distributed")
    ),
    *(
        Entry(
            target=f"{module}:split_group", kind=Kind.PATCH, group="program peers", has_source=False, test=_RUN,
            why="asks a backend to divide its communicator, which absent peers do not have",
        )
        for module in (_C10D, "torch.distributed")
    ),
    *entries(
        "torch.distributed.pipelining.stage",
        "PipelineStage._send_meta", "PipelineStage._recv_meta", "PipelineStage._warmup_forward_vote",
        "PipelineStage._warmup_backward_result",
        kind=Kind.PATCH, group="program pipelines", has_source=False, optional=True, test=_RUN,
        why="a stage waits there for the shapes that its neighbours announce (torch 2.13)",
    ),
    Entry(
        target="torch.distributed.pipelining.stage:PipelineStage.__init__", kind=Kind.PATCH, group="program pipelines",
        has_source=False, test=_RUN, why="a stage of a version that is not followed is refused by name",
    ),
)  # fmt: skip

COLLECTIVES = entries(
    "torch",
    *(
        f"ops._c10d_functional.{name}"
        for name in (
            "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
            "all_gather_single", "reduce_scatter_single",
        )
    ),
    kind=Kind.PATCH, group="collectives", has_source=False, optional=True, change=Change.REPORTED, test=_SPLIT,
    why="what a functional collective returns is told as communication; the last two are new names of torch 2.13",
)  # fmt: skip

DTENSOR_SPEED = (
    Entry(
        target="torch.distributed.device_mesh:DeviceMesh._concatenate", kind=Kind.PATCH, group="mesh speed",
        optional=True, test=_SPEED,
        why="fully_shard joins the meshes of sharding and tensor parallelism again for every parameter",
    ),
    Entry(
        target="torch.distributed.device_mesh:DeviceMesh.__eq__", kind=Kind.PATCH, group="mesh speed", test=_SPEED,
        why="compares two meshes rank by rank, which is asked for every operator",
    ),
    Entry(
        target=f"{_DTENSOR}._dispatch:OpDispatcher._propagate_op_sharding_dispatch_slow_path", kind=Kind.PATCH,
        group="list speed", has_source=False, optional=True, change=Change.REPORTED,
        test="tests/traces/test_dtensor_lists.py",
        why="asks for every tensor of a list (`_foreach_`, `_fused_`) what each of all placements costs",
    ),
    *entries(
        f"{_DTENSOR}._sharding_prop", "LocalLRUCache", "ShardingPropagator.propagate_op_sharding_non_cached",
        kind=Kind.PRIVATE, has_source=False, test=_SPLIT,
        why="one cache to each thread: a new one forgets what was found in the last world",
    ),
    *entries(
        f"{_DTENSOR}._redistribute", "_gen_transform_infos", "_planner_cache",
        kind=Kind.PRIVATE, has_source=False, optional=True, test=_SPLIT, why="as above",
    ),
    Entry(
        target="torch._C:_clear_DTensor_sharding_propagator_cache", kind=Kind.PRIVATE, has_source=False, test=_SPLIT,
        optional=True, why="as above, of each thread in C++ (since torch 2.10)",
    ),
    Entry(
        target=f"{_DTENSOR}.experimental._attention:set_rotate_method", kind=Kind.PRIVATE, has_source=False,
        test=_SPLIT, why="how the ring of context parallelism passes keys and values on",
    ),
    *entries(
        f"{_DTENSOR}.parallel.loss", "_disable_custom_loss_ops", "_enable_custom_loss_ops",
        kind=Kind.PRIVATE, test=_SPLIT, why="torch's own context does not clean up after an error",
    ),
)  # fmt: skip

FSDP2 = (
    *entries(
        f"{_FSDP}._fsdp_param_group", "foreach_all_gather", "foreach_reduce",
        kind=Kind.PATCH, group="fsdp told", has_source=False, test=_SHARDED,
        why="allocates what is sent and received, which is told as communication (_fsdp_collectives.py)",
    ),
    Entry(
        target=f"{_FSDP}._fsdp_collectives:foreach_all_gather", kind=Kind.MIRROR, change=Change.REPORTED, test=_SHARDED,
        why="its buffers lie in one region of the trace",
    ),
    Entry(
        target=f"{_FSDP}._fsdp_param:FSDPParam.alloc_all_gather_outputs", kind=Kind.PATCH, group="fsdp told",
        test=_SHARDED, why="allocates whole parameters, which are told by their names",
    ),
    Entry(
        target=f"{_FSDP}._fsdp_param:FSDPParam.to_sharded_post_forward", kind=Kind.PATCH, group="fsdp told",
        test=_SHARDED, why="allocates what stays after the forward where a part is resharded to fewer ranks",
    ),
    Entry(
        target=f"{_FSDP}._fsdp_param:_chunk_with_empty", kind=Kind.PATCH, group="shard chunks", has_source=False,
        test=_CHUNKS, why="makes as many chunks of every parameter as there are ranks (_fsdp_common.py)",
    ),
    Entry(
        target=f"{_FSDP}._fsdp_common:_chunk_with_empty", kind=Kind.MIRROR, test=_CHUNKS,
        why="what is put in its place makes the same chunks, when they are asked for",
    ),
    Entry(
        target=f"{_FSDP}._fsdp_param:FSDPParam.reset_sharded_param", kind=Kind.PATCH, group="host not pinned",
        test="tests/traces/test_optimizer_variants.py",
        why="pins parameters that rest on the host, which would take their real memory where it is planned",
    ),
    Entry(
        target="torch:Tensor.is_pinned", kind=Kind.PATCH, group="said to be pinned", has_source=False,
        test="tests/traces/test_optimizer_variants.py", why="as above: what is said to be pinned is not pinned again",
    ),
    *entries(
        f"{_FSDP}._fully_shard", "FSDPModule._get_fsdp_state",
        kind=Kind.PRIVATE, test=_SHARDED,
        why="sizes that do not divide, gathered parameters and waiting gradients are read from fully_shard's own state",
    ),
    *entries(
        f"{_FSDP}._fsdp_param_group", "FSDPParamGroup.__init__",
        kind=Kind.PRIVATE, change=Change.REPORTED, test="tests/traces/test_folding.py",
        why="names what a group keeps between two micro-batches (planner/training/folding.py)",
    ),
    *entries(
        f"{_FSDP}._fsdp_state", "FSDPState.__init__", "FSDPState._init_shared_state",
        kind=Kind.PRIVATE, change=Change.REPORTED, test="tests/traces/test_folding.py", why="as above, of a module",
    ),
)  # fmt: skip

DDP = (
    *entries(
        "torch.nn.parallel.distributed", "DistributedDataParallel._build_params_for_reducer",
        "DistributedDataParallel._ddp_init_helper", "DistributedDataParallel._sync_buffers",
        kind=Kind.OVERRIDE, test=_REPLICATED, change=Change.REPORTED,
        why="the constructor's first exchange, its buckets and the broadcast of buffers are told apart",
    ),
    *entries(
        "torch.nn.parallel.distributed", "DistributedDataParallel._get_ddp_logging_data",
        kind=Kind.PRIVATE, test=_REPLICATED, why="the reducer's own account of its buckets",
    ),
    Entry(
        target="torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer._partition_parameters",
        kind=Kind.PRIVATE, test="tests/traces/test_divided_optimizers.py",
        why="which replica has which part of the state",
    ),
    *entries(
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", "powerSGD_hook", "PowerSGDState.__init__",
        kind=Kind.PRIVATE, change=Change.REPORTED, test=_REPLICATED,
        why="factors and errors are found in its dictionaries; two iterations are the fewest before it compresses",
    ),
)  # fmt: skip

PIPELINES = (
    *entries(
        "torch.distributed.pipelining.stage",
        "PipelineStage._warmup_backward_result", "_PipelineStageBase.forward_one_chunk",
        "_PipelineStageBase.backward_one_chunk", "_PipelineStageBase.backward_weight_one_chunk",
        "_PipelineStageBase.backward_maybe_with_nosync", "_PipelineStageBase.get_fwd_recv_ops",
        "_PipelineStageBase.get_bwd_recv_ops",
        kind=Kind.OVERRIDE, optional=True, test=_PIPELINES,
        why="a stage tells of its buffers and phases, and gives told micro-batches what it would have left",
    ),
    Entry(
        target="torch.distributed.pipelining._backward:_get_grad_fn_or_grad_acc", kind=Kind.PRIVATE, test=_PIPELINES,
        why="parameters whose gradients are still to be computed are put in the module's order",
    ),
    Entry(
        target="torch.distributed.pipelining._backward:get_param_groups", kind=Kind.MIRROR, test=_PIPELINES,
        why="walks over sets, whose order hinges on addresses: the order that is put in its place reads its results",
    ),
)  # fmt: skip


CheckpointEntry = partial(listing.Entry, part="checkpoints")
checkpoint_entries = partial(listing.entries, part="checkpoints")

_SAVES = "tests/traces/test_checkpoint_cpu_runs.py"
_RUN_CHECKPOINTS = "tests/running/test_program_checkpoints.py"
_DCP = "torch.distributed.checkpoint"

CHECKPOINTS = (
    CheckpointEntry(
        target=f"{_DCP}.utils:_DistWrapper.__init__", kind=Kind.PATCH, group="checkpoint peers", test=_SAVES,
        why="plans for all ranks on rank 0: with absent peers each rank plans its own part",
    ),
    CheckpointEntry(
        target=f"{_DCP}.default_planner:_validate_global_plan", kind=Kind.PATCH, group="checkpoint peers",
        has_source=False, test=_RUN_CHECKPOINTS,
        why="a checkpoint of which this rank writes its part is not whole: the parts of absent peers are missing",
    ),
    *(
        CheckpointEntry(
            target=f"{module}:_broadcast_state_dict", kind=Kind.PATCH, group="checkpoint peers",
            has_source="utils" in module, test=_SAVES,
            why="rank 0 announces what it sends: of absent peers the names and shapes are those of this rank's own",
        )
        for module in ("torch.distributed._state_dict_utils", f"{_DCP}.state_dict")
    ),
    CheckpointEntry(
        target="torch.distributed:broadcast_object_list", kind=Kind.PATCH, group="state dict announced",
        has_source=False, test=_SAVES, why="as above: the announcement",
    ),
    CheckpointEntry(
        target="torch.distributed._state_dict_utils:_TensorInfo", kind=Kind.PRIVATE, test=_SAVES,
        why="how the announcement describes a tensor",
    ),
    CheckpointEntry(
        target="torch.distributed._state_dict_utils:_iterate_state_dict", kind=Kind.PATCH, group="state dicts told",
        change=Change.REPORTED, test=_SAVES, why="where whole tensors are gathered, which are told as a checkpoint's",
    ),
    *checkpoint_entries(
        "torch.cuda._pin_memory_utils", "pin_memory", "unpin_memory",
        kind=Kind.PATCH, group="checkpoints not pinned", optional=True, test=_SAVES,
        why="what async_save stages is pinned by the driver, which is not there",
    ),
    *listing.entries(
        f"{_DCP}.state_dict", "_get_model_state_dict", "_get_optim_state_dict", "_load_model_state_dict",
        "_load_optim_state_dict",
        kind=Kind.PATCH, group="program watched", has_source=False, change=Change.REPORTED, test=_RUN_CHECKPOINTS,
        why="where a program gathers a state dict or loads one, which begins a phase",
    ),
    CheckpointEntry(
        target="safetensors.torch:serialize_file", kind=Kind.PATCH, group="tensors unwritten", has_source=False,
        test=_SAVES, why="writes a file of tensors that have no bytes",
    ),
    CheckpointEntry(
        target=f"{_DCP}.filesystem:_write_files_from_queue", kind=Kind.MIRROR, change=Change.REPORTED, test=_SAVES,
        why="writes by the writer's file system and transforms, which a plan replaces",
    ),
)  # fmt: skip
