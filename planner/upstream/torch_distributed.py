"""What training in a world of ranks relies on in torch: process groups, DDP, FSDP2, DTensor, pipelines, checkpoints."""

from __future__ import annotations

from planner.upstream.entries import Change, mirror, override, patch, private

_ABSENT = "tests/truth/measuring/test_absent_peers.py"
_CPU_RUNS = "tests/tracing/traces/test_cpu_runs.py"
_FOLDING = "tests/tracing/traces/test_folding.py"
_PIPELINES = "tests/tracing/traces/test_pipelined_cpu_runs.py"
_RESUMED = "tests/job/bound/test_lower_bound.py"
_RUN = "tests/tracing/running/test_programs_in_a_world.py"
_RUN_CHECKPOINTS = "tests/tracing/running/test_program_checkpoints.py"
_SAVES = "tests/tracing/traces/test_checkpoint_cpu_runs.py"
_SMALL = "tests/planning/plans/test_small_worlds.py"
_SPEED = "tests/tracing/traces/test_dtensor_speed.py"

ABSENT_PEERS = (
    *patch("every step is taken", _ABSENT, targets={
        "torch.amp.grad_scaler:GradScaler._unscale_grads_":
            "what absent peers did not send must not skip the step in which the optimizer's state is born",
    }),
    *private(_ABSENT, has_source=False, optional=True, targets={
        "torch._C._distributed_c10d:FakeProcessGroup._create_internal":
            "gathers are torch's own fake group's (by its constructor up to 2.9)",
    }),
    *private(_SMALL, has_source=False, optional=True, targets={
        "torch.distributed.device_mesh:_mesh_resources":
            "it keeps flattened meshes, up to 2.9, of whichever rank asked first",
    }),
    *private(_ABSENT, has_source=False, targets={
        "torch._C._distributed_c10d:_create_work_from_future": "the reducer takes its bucket from the work's future",
        "torch.testing._internal.distributed.fake_pg:FakeStore": "a store in which nobody waits for anybody",
    }),
    *override(_ABSENT, has_source=False, targets={
        "torch.distributed:ProcessGroup._set_group_name ProcessGroup._set_group_desc ProcessGroup._device_types":
            "a group in Python has no backends, which keep its name since torch 2.13 (c10d/ProcessGroup.cpp)",
    }),
)  # fmt: skip

PROGRAM_PEERS = (
    *patch("program peers", _RUN, targets={
        "torch.distributed.distributed_c10d:_new_process_group_helper":
            "a program's groups are made there, of every backend: theirs are absent peers",
        "torch.distributed.distributed_c10d:_get_object_coll_device":
            "objects travel as bytes, which tensors of a paper GPU do not have: on the host they do",
        "torch.distributed.distributed_c10d:broadcast_object_list scatter_object_list":
            "what an absent peer would have sent is not known, and its place stays as it is",
    }),
    *patch("program peers", _RUN, has_source=False, targets={
        "torch.distributed.distributed_c10d:rendezvous":
            "waits for all ranks of the world (torch/distributed/rendezvous.py)",
        "torch.distributed:TCPStore": "its first process waits for all the others",
        "torch.distributed:broadcast_object_list scatter_object_list":
            "what an absent peer would have sent is not known, and its place stays as it is",
        "torch.distributed.distributed_c10d:recv_object_list torch.distributed:recv_object_list "
        "torch.distributed.distributed_c10d:recv torch.distributed:recv":
            "what an absent peer would have sent is not known, nor who of all would have sent",
        "torch.distributed.distributed_c10d:split_group torch.distributed:split_group":
            "asks a backend to divide its communicator, which absent peers do not have",
    }),
    *patch("program peers", _RUN, has_source=False, optional=True, targets={
        "torch.distributed.distributed_c10d:_maybe_attach_flight_recorder":
            "a recorder of collectives asks for the backends of a group (torch 2.15)",
    }),
    *patch("absent peers", _RESUMED, has_source=False, optional=True, targets={
        "torch.distributed.distributed_c10d:_maybe_attach_flight_recorder":
            "a recorder of collectives asks for the backends of a group (torch 2.15)",
    }),
    *patch("program pipelines", _RUN, has_source=False, optional=True, targets={
        "torch.distributed.pipelining.stage:PipelineStage._send_meta PipelineStage._recv_meta "
        "PipelineStage._warmup_forward_vote PipelineStage._warmup_backward_result":
            "a stage waits there for the shapes that its neighbours announce (torch 2.13)",
    }),
    *patch("program pipelines", _RUN, has_source=False, targets={
        "torch.distributed.pipelining.stage:PipelineStage.__init__":
            "a stage of a version that is not followed is refused by name",
    }),
)  # fmt: skip

COLLECTIVES = (
    *patch("collectives", _CPU_RUNS, change=Change.REPORTED, has_source=False, optional=True, targets={
        "torch:ops._c10d_functional.all_reduce ops._c10d_functional.all_gather_into_tensor "
        "ops._c10d_functional.reduce_scatter_tensor ops._c10d_functional.all_to_all_single "
        "ops._c10d_functional.broadcast ops._c10d_functional.all_gather_single "
        "ops._c10d_functional.reduce_scatter_single":
            "what a functional collective returns is told as communication; the last two are new names of torch 2.13",
    }),
)  # fmt: skip

DTENSOR_SPEED = (
    *patch("mesh speed", _SPEED, optional=True, targets={
        "torch.distributed.device_mesh:DeviceMesh._concatenate":
            "fully_shard joins the meshes of sharding and tensor parallelism again for every parameter",
    }),
    *patch("mesh speed", _SPEED, targets={
        "torch.distributed.device_mesh:DeviceMesh.__eq__":
            "compares two meshes rank by rank, which is asked for every operator",
    }),
    *patch("list speed", _SPEED, change=Change.REPORTED, has_source=False, optional=True,
        targets={
        "torch.distributed.tensor._dispatch:OpDispatcher._propagate_op_sharding_dispatch_slow_path":
            "asks for every tensor of a list (`_foreach_`, `_fused_`) what each of all placements costs",
    }),
    *private(_CPU_RUNS, has_source=False, targets={
        "torch.distributed.tensor._sharding_prop:LocalLRUCache ShardingPropagator.propagate_op_sharding_non_cached":
            "one cache to each thread: a new one forgets what was found in the last world",
        "torch.distributed.tensor.experimental._attention:set_rotate_method":
            "how the ring of context parallelism passes keys and values on",
    }),
    *private(_CPU_RUNS, has_source=False, optional=True, targets={
        "torch.distributed.tensor._redistribute:_gen_transform_infos _planner_cache":
            "caches of a thread too, which forget the last world",
        "torch._C:_clear_DTensor_sharding_propagator_cache": "as above, of each thread in C++ (since torch 2.10)",
    }),
    *private(_FOLDING, has_source=False, targets={
        "torch._subclasses.fake_tensor:FakeTensorMode.cache_clear":
            "what it keeps of DTensors' operators is on the device of the last rank",
    }),
    *private(_CPU_RUNS, targets={
        "torch.distributed.tensor.parallel.loss:_disable_custom_loss_ops _enable_custom_loss_ops":
            "torch's own context does not clean up after an error",
    }),
)  # fmt: skip

FSDP2 = (
    *patch("fsdp roles", _CPU_RUNS, has_source=False, targets={
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_all_gather foreach_reduce":
            "allocates what is sent and received, which is told as communication (_fsdp_collectives.py)",
    }),
    *mirror(_CPU_RUNS, change=Change.REPORTED, targets={
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_all_gather":
            "its buffers lie in one region of the trace",
    }),
    *patch("fsdp roles", _CPU_RUNS, targets={
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.alloc_all_gather_outputs":
            "allocates whole parameters, which are told by their names",
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.to_sharded_post_forward":
            "allocates what stays after the forward where a part is resharded to fewer ranks",
    }),
    *patch("shard chunks", _SPEED, has_source=False, targets={
        "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty":
            "makes as many chunks of every parameter as there are ranks (_fsdp_common.py)",
    }),
    *mirror(_SPEED, targets={
        "torch.distributed.fsdp._fully_shard._fsdp_common:_chunk_with_empty":
            "what is put in its place makes the same chunks, when they are asked for",
    }),
    *private(_CPU_RUNS, targets={
        "torch.distributed.fsdp._fully_shard._fully_shard:FSDPModule._get_fsdp_state":
            "sizes that do not divide, gathered parameters and waiting gradients are read from fully_shard's own state",
    }),
    *private(_FOLDING, change=Change.REPORTED, targets={
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.__init__":
            "names what a group keeps between two micro-batches (planner/tracing/pipeline_folding.py)",
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState.__init__ FSDPState._init_shared_state":
            "as above, of a module",
    }),
)  # fmt: skip

FSDP1 = (
    *patch("fsdp1 roles", _CPU_RUNS, change=Change.REPORTED, has_source=False, targets={
        "torch.distributed.fsdp._runtime_utils:_share_state_and_init_handle_attrs":
            "the first forward, in which units are known by their paths and flat parameters are told",
        "torch.distributed.fsdp._runtime_utils:_post_backward_hook": "the gradient of a whole flat parameter is there",
        "torch.distributed.fsdp._runtime_utils:_get_reduce_scatter_tensors":
            "allocates what is sent, which is told as communication",
        "torch.distributed.fsdp._runtime_utils:_accumulate_sharded_grad _reduce_grad_no_shard":
            "the gradient that is kept, whose storage is another one in low precision",
        "torch.distributed.fsdp._flat_param:FlatParamHandle._alloc_padded_unsharded_flat_param":
            "allocates a whole flat parameter, which is told by its unit's path",
        "torch.distributed.fsdp._flat_param:FlatParamHandle._use_low_precision_shard":
            "allocates the shard that is gathered in low precision",
    }),
)  # fmt: skip

DDP = (
    *patch("ddp roles", _CPU_RUNS, change=Change.REPORTED, targets={
        "torch.nn.parallel.distributed:DistributedDataParallel._ddp_init_helper":
            "there DDP allocates its buckets, which are named so",
        "torch.nn.parallel.distributed:DistributedDataParallel._build_params_for_reducer":
            "from here to the reducer DDP verifies and broadcasts parameters and buffers",
        "torch.nn.parallel.distributed:DistributedDataParallel._sync_buffers":
            "there DDP flattens the buffers that it sends before a forward",
    }),
    *patch("ddp roles", _RUN, change=Change.REPORTED, has_source=False, targets={
        "torch.nn.parallel.distributed:DistributedDataParallel.register_comm_hook":
            "what a hook allocates serves communication",
    }),
    *private(_CPU_RUNS, targets={
        "torch.nn.parallel.distributed:DistributedDataParallel._get_ddp_logging_data":
            "the reducer's own account of its buckets",
    }),
    *private("tests/tracing/traces/test_divided_optimizers.py", targets={
        "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer._partition_parameters":
            "which replica has which part of the state",
    }),
)  # fmt: skip

PIPELINES = (
    *override(_PIPELINES, optional=True, targets={
        "torch.distributed.pipelining.stage:PipelineStage._warmup_backward_result "
        "_PipelineStageBase.forward_one_chunk _PipelineStageBase.backward_one_chunk "
        "_PipelineStageBase.backward_weight_one_chunk": "a stage names its phases",
    }),
    *override(_PIPELINES, has_source=False, targets={
        "torch.distributed.pipelining.stage:_PipelineStageBase.forward_maybe_with_nosync":
            "a stage computes its forward under autocast",
    }),
    *patch("pipeline roles", _PIPELINES, optional=True, targets={
        "torch.distributed.pipelining.stage:_PipelineStageBase.get_fwd_recv_ops "
        "_PipelineStageBase.get_bwd_recv_ops _PipelineStageBase.backward_one_chunk "
        "_PipelineStageBase.backward_weight_one_chunk _PipelineStageBase.backward_maybe_with_nosync":
            "what stages receive, and gradients that they add up themselves, are told",
    }),
    *patch("pipeline roles", _RUN, has_source=False, targets={
        "torch.distributed.pipelining.schedules:PipelineScheduleSingle.step PipelineScheduleMulti.step":
            "what a schedule is given is told as input: it is divided before a forward has it",
    }),
    *patch("pipelines watched", _RUN, change=Change.REPORTED, has_source=False, optional=True, targets={
        "torch.distributed.pipelining.stage:_PipelineStageBase.backward_one_chunk":
            "what is received for a backward, and what it makes of that, belongs to it",
        "torch.distributed.pipelining.schedules:PipelineScheduleSingle.step PipelineScheduleMulti.step":
            "what is done after the backwards of a schedule belongs to them",
    }),
    *patch("pipelines folded", _FOLDING, optional=True, targets={
        "torch.distributed.pipelining.stage:_PipelineStageBase.forward_one_chunk "
        "_PipelineStageBase.backward_one_chunk _PipelineStageBase.backward_weight_one_chunk":
            "of a micro-batch that is not run a stage gives what it would have left",
    }),
    *patch("pipelines folded", _FOLDING, has_source=False, targets={
        "torch.distributed.pipelining.schedules:_PipelineSchedule.__init__ _PipelineSchedule._maybe_compute_loss":
            "a schedule keeps the loss of a micro-batch that is not run",
        "torch.distributed.pipelining.stage:_PipelineStageBase.clear_runtime_states "
        "_PipelineStageBase._retrieve_recv_activations _PipelineStageBase._retrieve_recv_grads":
            "an iteration begins; what was sent for a micro-batch is there, whether it is run or not",
    }),
    *private(_PIPELINES, targets={
        "torch.distributed.pipelining._backward:_get_grad_fn_or_grad_acc":
            "parameters whose gradients are still to be computed are put in the module's order",
    }),
    *mirror(_PIPELINES, targets={
        "torch.distributed.pipelining._backward:get_param_groups":
            "walks over sets, whose order depends on addresses: the order that is put in its place reads its results",
    }),
)  # fmt: skip

CHECKPOINTS = (
    *patch("checkpoint peers", _SAVES, part="checkpoints", targets={
        "torch.distributed.checkpoint.utils:_DistWrapper.__init__":
            "plans for all ranks on rank 0: with absent peers each rank plans its own part",
        "torch.distributed._state_dict_utils:_broadcast_state_dict":
            "rank 0 announces what it sends: of absent peers the names and shapes are those of this rank's own",
    }),
    *patch("checkpoint peers", _RUN_CHECKPOINTS, has_source=False, part="checkpoints", targets={
        "torch.distributed.checkpoint.default_planner:_validate_global_plan":
            "a checkpoint of which this rank writes its part is not whole: the parts of absent peers are missing",
    }),
    *patch("checkpoint peers", _SAVES, has_source=False, part="checkpoints", targets={
        "torch.distributed.checkpoint.state_dict:_broadcast_state_dict":
            "rank 0 announces what it sends: of absent peers the names and shapes are those of this rank's own",
    }),
    *patch("state dict announced", _SAVES, has_source=False, part="checkpoints", targets={
        "torch.distributed:broadcast_object_list": "as above: the announcement",
    }),
    *private(_SAVES, part="checkpoints", targets={
        "torch.distributed._state_dict_utils:_TensorInfo": "how the announcement describes a tensor",
    }),
    *patch("program watched", _RUN_CHECKPOINTS, change=Change.REPORTED, has_source=False, targets={
        "torch.distributed.checkpoint.state_dict:_get_model_state_dict _get_optim_state_dict _load_model_state_dict "
        "_load_optim_state_dict": "where a program gathers a state dict or loads one, which begins a phase",
    }),
    *mirror(_SAVES, change=Change.REPORTED, part="checkpoints", targets={
        "torch.distributed.checkpoint.filesystem:_write_files_from_queue":
            "writes by the writer's file system and transforms, which a plan replaces",
    }),
)  # fmt: skip
