"""What the paper GPU relies on in torch's single-device code."""

from __future__ import annotations

from planner.upstream.entries import Change, patch, private, wrapped

_COMPILED = "tests/running/test_compiled_programs.py"
_CPU_RUNS = "tests/traces/test_against_cpu_runs.py"
_FACE = "tests/running/test_cuda_face.py"
_HOST = "tests/running/test_large_hosts.py"
_KERNELS = "tests/traces/test_kernels_attention.py"
_MEASURED = "tests/measuring/test_measured_programs.py"
_ON_PAPER = "tests/traces/test_architectures.py"
_PROGRAMS = "tests/traces/test_recorded_programs.py"
_RUN = "tests/running/test_programs.py"
_STAGE_3 = "tests/traces/test_deepspeed_stage3.py"
_STORAGES = "tests/running/test_storages.py"

CUDA_FACE = (
    *private(_COMPILED, has_source=False, part="compiling", targets={
        "torch._dynamo.utils:common_constant_types": "properties of a GPU are constants of what is compiled",
    }),
    *patch("cuda face", _ON_PAPER, has_source=False, created=True, targets={
        "torch.cuda:_lazy_init is_initialized is_available device_count current_device set_device _exchange_device "
        "_maybe_exchange_device get_device_name get_device_capability get_device_properties is_bf16_supported "
        "is_current_stream_capturing synchronize empty_cache Stream Event stream StreamContext current_stream "
        "default_stream set_stream manual_seed manual_seed_all get_rng_state set_rng_state mem_get_info "
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats "
        "memory_stats _CudaDeviceProperties": "asks the CUDA runtime, which a paper GPU does not have",
        "torch._C:_accelerator_isAllocatorInitialized _accelerator_getDeviceStats":
            "asks CUDA's allocator what is taken; here a step on paper is asked",
    }),
    *patch("cuda face", _STAGE_3, has_source=False, targets={
        "torch.cuda.nvtx:range_push range_pop": "calls the profiler's library of CUDA, which is not there",
    }),
    *patch("cuda face", "tests/traces/test_sharded_cpu_runs.py", has_source=False, targets={
        "torch:UntypedStorage.resize_":
            "torch built without CUDA cannot resize a storage on a GPU (torch/csrc/StorageMethods.cpp), as FSDP2 does",
    }),
    *patch("cuda face", "tests/traces/test_checkpoint_cpu_runs.py", has_source=False, targets={
        "torch:UntypedStorage.copy_":
            "async_save copies storages, which have no dtype: as bytes they would be values that somebody reads",
    }),
    *patch("cuda face", "tests/house/test_upstream.py", change=Change.REPORTED, targets={
        "torch._tensor_str:_str": "prints the values of a tensor, and a tensor on paper has none",
    }),
    *patch("cuda face", _PROGRAMS, targets={
        "torch.cuda.amp.common:amp_definitely_not_available":
            "turns autocast and GradScaler off with a mere warning where torch was built without CUDA",
    }),
    *patch("cuda face", "tests/traces/test_kernels_convolution.py", has_source=False, targets={
        "torch.backends.cudnn:is_available is_acceptable version":
            "asks cuDNN, which a CPU build lacks; the GPU that is planned for has it",
    }),
    *patch("cuda face", _ON_PAPER, targets={
        "torch.backends.cudnn.rnn:get_cudnn_mode": "reads an enumeration that only builds with cuDNN have",
    }),
)  # fmt: skip

CPU_TARGET = (
    *patch("cpu target", _CPU_RUNS, has_source=False, targets={
        "torch.optim.optimizer:_get_foreach_kernels_supported_devices":
            "optimizers loop over parameters on a CPU, and decide by the type of the device",
    }),
    *patch("cpu target", _CPU_RUNS, targets={
        "torch.nn.functional:rms_norm": "a composite operator that chooses a fused kernel on CUDA",
    }),
)  # fmt: skip

PRIVATE = (
    *private("tests/traces/test_kernels_sized_by_data.py", has_source=False, targets={
        "torch._C:_current_autograd_node": "which backward reads a value that a tensor on paper lacks",
    }),
    *private("tests/running/test_function_transforms.py", has_source=False, targets={
        "torch._C._functorch:is_functorch_wrapped_tensor get_unwrapped": "whose memory a tensor inside a transform has",
        "torch._C:_has_storage": "whether a tensor has memory of its own",
    }),
    *private(_KERNELS, has_source=False, targets={
        "torch._C:DisableTorchFunction": "a kernel's own call of an operator is not the program's",
        "torch.utils._pytree:tree_map": "arguments of kernels in lists and tuples",
    }),
    *private(_CPU_RUNS, targets={
        "torch.library:Library._destroy": "gives the operators of the target `cpu` back to CUDA's kernels",
    }),
    *private(_STAGE_3, targets={
        "torch.utils._device:_device_constructors":
            "remembers functions on its first call, which must not be while DeepSpeed has replaced them",
    }),
)  # fmt: skip

ON_CUDA = (
    *patch("cuda face of a step", "tests/running/test_on_cuda.py", has_source=False, targets={
        "torch.cuda:set_device": "a spec's step runs on the first device, whatever its rank",
        "torch.cuda:memory_allocated max_memory_allocated memory_reserved max_memory_reserved reset_peak_memory_stats "
        "memory_stats": "an allocator that is put in the place of torch's own keeps no statistics",
        "torch:UntypedStorage.copy_":
            "async_save copies storages, which have no dtype: as bytes they would be values that somebody reads",
    }),
    *private("tests/running/test_on_cuda.py", has_source=False, optional=True, targets={
        "torch._C:_cuda_clearCublasWorkspaces": "workspaces that an earlier trace of this process has left",
    }),
    *private("tests/running/test_varying_sizes.py", has_source=False, targets={
        "torch.cuda:_is_in_bad_fork": "a child that looks ahead goes on with CUDA on paper, which survives a fork",
    }),
    *patch("program's cuda", "tests/running/test_on_cuda.py", has_source=False, created=True, targets={
        "torch._C:_cuda_memoryStats _cuda_resetPeakMemoryStats _cuda_resetAccumulatedMemoryStats "
        "_cuda_getMemoryFraction _cuda_setMemoryFraction _cuda_memorySnapshot _accelerator_getDeviceStats "
        "_accelerator_resetPeakStats _accelerator_resetAccumulatedStats _accelerator_isAllocatorInitialized "
        "_accelerator_getMemoryInfo":
            "an allocator that is put in the place of torch's own keeps no statistics: planner's replay does",
        "torch._C:_cuda_cudaCachingAllocator_enable _cuda_cudaCachingAllocator_set_allocator_settings "
        "_accelerator_setAllocatorSettings": "settings are those of planner's replay",
    }),
    *patch("program's cuda", "tests/running/test_bad_programs.py", has_source=False, optional=True, targets={
        "torch._C:_cuda_init":
            "settings are read, and refused, when CUDA starts, and its generators begin with the same numbers",
        "torch.cuda:MemPool use_mem_pool CUDAPluggableAllocator change_current_allocator":
            "planner's allocator is in the place of torch's own, and knows neither pools nor others",
        "torch.cuda:device_memory_used memory_usage utilization temperature power_draw clock_rate list_gpu_processes":
            "they ask NVIDIA's management library, which says what planner's replay knows",
    }),
    *patch("events", "tests/running/test_deepspeed_programs.py", has_source=False, targets={
        "torch.cuda.streams:Event.query": "an event is done at once on paper, but for a program that is to wait for it",
    }),
    *patch("program's cuda", "tests/running/test_on_cuda.py", has_source=False, targets={
        "torch.cuda:mem_get_info": "asks the CUDA runtime what is free, which knows nothing of planner's allocator",
        "torch.cuda.memory:mem_get_info": "the same",
    }),
)  # fmt: skip
"""Where torch's own CUDA code runs, on the CUDA runtime on paper."""

MEASURED_PROGRAMS = (
    *private(_MEASURED, change=Change.REPORTED, has_source=False, part="measuring", targets={
        "torch.cuda:_lazy_call": "a measured program's history begins when it first uses CUDA, not before",
        "torch.cuda.memory:_record_memory_history _dump_snapshot": "the allocator's history of a measured program",
    }),
    *wrapped(_MEASURED, change=Change.REPORTED, has_source=False, optional=True, part="measuring", targets={
        "torch.cuda:reset_peak_memory_stats torch.cuda.memory:reset_peak_memory_stats "
        "torch.accelerator:reset_peak_memory_stats torch.accelerator.memory:reset_peak_memory_stats":
            "a measured program that sets its counters back keeps the peaks from before",
    }),
)  # fmt: skip

PROGRAMS = (
    *patch("program's cuda face", _FACE, has_source=False, optional=True, targets={
        "torch.cuda:_is_compiled _initialized _lazy_init is_initialized _exchange_device _maybe_exchange_device "
        "current_device set_device cudart default_generators get_arch_list get_device_name get_device_properties "
        "device_memory_used memory_usage utilization temperature power_draw clock_rate list_gpu_processes "
        "_compile_kernel empty_cache get_per_process_memory_fraction max_memory_allocated max_memory_reserved "
        "mem_get_info memory_allocated memory_reserved memory_stats reset_peak_memory_stats get_rng_state manual_seed "
        "manual_seed_all set_rng_state CUDAGraph graph make_graphed_callables MemPool use_mem_pool "
        "CUDAPluggableAllocator change_current_allocator caching_allocator_alloc GreenContext graph_pool_handle "
        "ExternalStream get_stream_from_external caching_allocator_delete _cudart BFloat16Tensor BoolTensor "
        "ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor ShortTensor":
            "a program asks more of CUDA than a step does: memory, clocks, several GPUs",
    }),
    *patch("program's cuda face", _FACE, has_source=False, created=True, targets={
        "torch._C:_cuda_memoryStats _cuda_resetPeakMemoryStats _cuda_resetAccumulatedMemoryStats _cuda_emptyCache "
        "_cuda_getMemoryFraction _cuda_setMemoryFraction _cuda_hostMemoryStats _cuda_resetPeakHostMemoryStats "
        "_cuda_resetAccumulatedHostMemoryStats _cuda_memorySnapshot _cuda_record_memory_history "
        "_cuda_record_memory_history_legacy _cuda_isHistoryEnabled _cuda_setMemoryMetadata _cuda_getMemoryMetadata "
        "_cuda_getAllocatorBackend _cuda_cudaCachingAllocator_is_enabled _cuda_cudaCachingAllocator_enable "
        "_cuda_getDevice _cuda_setDevice _cuda_exchangeDevice _cuda_maybeExchangeDevice _cuda_getDeviceCount "
        "_cuda_getArchFlags _cuda_canDeviceAccessPeer _cuda_ipc_collect _cuda_init _cuda_sleep _cuda_synchronize "
        "_cuda_clearCublasWorkspaces _cuda_getCurrentBlasHandle _cuda_getCurrentSolverHandle "
        "_cuda_getCurrentRawStream _cuda_get_sync_debug_mode _cuda_set_sync_debug_mode "
        "_cuda_get_cudnn_benchmark_limit _cuda_set_cudnn_benchmark_limit _nccl_version _nccl_version_suffix "
        "_accelerator_isAllocatorInitialized _accelerator_getDeviceStats _accelerator_getMemoryInfo "
        "_accelerator_resetPeakStats _accelerator_resetAccumulatedStats _accelerator_emptyCache "
        "_accelerator_setAllocatorSettings":
            "bindings of a CUDA build, on which torch's own Python code under torch.cuda stands",
        "torch._C:_cuda_beginAllocateCurrentStreamToPool _cuda_checkPoolLiveAllocations _cuda_getCheckpointState "
        "_cuda_setCheckpointPoolState _cuda_changeCurrentAllocator _cuda_customAllocator _cuda_getAllocator "
        "_cuda_cudaHostAllocator _cuda_cudaCachingAllocator_raw_alloc _cuda_cudaCachingAllocator_raw_delete "
        "_cuda_allocationTraceback _cuda_getStreamFromExternal _cuda_getCublasLtWorkspaceSize "
        "_cuda_setCublasLtWorkspaceSize _cuda_resetCublasLtWorkspaceSize _cuda_tunableop_read_file _broadcast "
        "_broadcast_coalesced _broadcast_out _gather _gather_out _scatter _nccl_all_gather _nccl_all_reduce "
        "_nccl_broadcast _nccl_init_rank _nccl_reduce _nccl_reduce_scatter _nccl_unique_id _CUDAGreenContext "
        "_gds_register_buffer _gds_deregister_buffer _gds_register_handle _gds_deregister_handle _gds_load_storage "
        "_gds_save_storage _cuda_getCompiledVersion _cuda_getCublasWorkspaceSize _cuda_setCublasWorkspaceSize "
        "_cuda_resetCublasWorkspaceSize _cuda_getCurrentStream _cuda_getDefaultStream _cuda_setStream "
        "_cuda_hasPrimaryContext _cuda_isInBadFork _cuda_attach_out_of_memory_observer "
        "_cuda_get_conv_benchmark_empty_cache _cudnn_set_conv_benchmark_empty_cache "
        "_cuda_jiterator_compile_and_launch_kernel _cuda_lock_mutex _cuda_unlock_mutex "
        "_cuda_cudaCachingAllocator_set_allocator_settings _cuda_record_untuned_is_enabled "
        "_cuda_record_untuned_enable _CudaDeviceProperties _cuda_tunableop_enable _cuda_tunableop_is_enabled "
        "_cuda_tunableop_tuning_is_enabled _cuda_tunableop_get_filename _cuda_tunableop_get_max_tuning_duration "
        "_cuda_tunableop_get_max_tuning_iterations _cuda_tunableop_get_rotating_buffer_size "
        "_cuda_tunableop_get_rotation_buffer_size _cuda_tunableop_get_results _cuda_tunableop_get_validators "
        "_cuda_tunableop_set_filename _cuda_tunableop_set_max_tuning_duration "
        "_cuda_tunableop_set_max_tuning_iterations _cuda_tunableop_tuning_enable "
        "_cuda_tunableop_set_numerical_check_tolerances _cuda_tunableop_set_rotating_buffer_size":
            "the rest of a CUDA build's bindings: a setting that is off, or refused by name",
    }),
    *patch("program's cuda face", _FACE, has_source=False, targets={
        "torch.cuda.nvtx:mark range_start range_end _device_range_start _device_range_end":
            "calls the profiler's library of CUDA, which is not there",
        "torch.cuda.nccl:version": "asks NCCL, which a CPU build lacks",
        "torch.version:cuda": "None in a CPU build, by which programs choose their way",
        "torch.backends.cuda:is_built": "False in a CPU build",
    }),
    *patch("program's cuda face", _FACE, targets={
        "torch.autograd.profiler:profile.__init__": "a profiler of a GPU on which nothing runs warns at every operator",
    }),
    *patch("program watched", "tests/running/test_programs_in_a_world.py", change=Change.REPORTED, has_source=False,
        targets={
        "torch.nn.parallel.distributed:DistributedDataParallel._ddp_init_helper":
            "there DDP allocates its buckets, which are told as such",
    }),
    *patch("program watched", _RUN, has_source=False, targets={
        "torch.autograd:_engine_run_backward":
            "a program's backwards begin there, those of torch.autograd.grad too (autograd/__init__.py)",
        "torch.optim:Optimizer.__init__":
            "a program is watched until each of its optimizers has stepped, and for one that has not there is no hook",
        "torch:save load": "that a program saves or loads a checkpoint is told in its report",
    }),
    *patch("program storages", _STORAGES, has_source=False, targets={
        "torch:UntypedStorage.__new__": "a build without CUDA makes no storage on a GPU (torch/csrc/Storage.cpp)",
        "torch:UntypedStorage.cpu": "bytes that are not there would be read; they are on their way into a checkpoint",
    }),
    *patch("program storages", _STORAGES, targets={
        "torch.serialization:_save":
            "what lies on the device is written as a hole, which torch can do for whole files only (skip_data)",
    }),
    *patch("program compiles", _COMPILED, has_source=False, targets={
        "torch:compile torch._dynamo.convert_frame:_compile":
            "compiling for the paper GPU is switched on when a program first asks for it; collectives that torch 2.13 "
            "has deprecated are not compiled",
    }),
    *patch("inductor loaded", _COMPILED, has_source=False, targets={
        "torch.backends.cuda:is_built": "Inductor takes what a build with CUDA has in torch._C where it finds one",
    }),
    *patch("program storages", _HOST, has_source=False, targets={
        "torch.serialization:_open_zipfile_writer_buffer.__init__":
            "a hole is seeked over, which streams of torch.distributed.checkpoint cannot",
    }),
    *patch("program initialises", _HOST, has_source=False, targets={
        "torch.nn.init:_no_grad_trunc_normal_ orthogonal_":
            "of large host tensors initial random numbers, with which these compute, are left out",
    }),
    *patch("program checkpoints", _HOST, has_source=False, targets={
        "torch:load": "a large checkpoint is mapped: what is never read takes no memory",
    }),
    *patch("program checkpoints", _HOST, has_source=False, optional=True, targets={
        "safetensors.torch:serialize_file": "what has no values is a hole in a file, where safetensors writes zeros",
    }),
    *patch("program losses", _RUN, has_source=False, targets={
        "torch.nn.functional:cross_entropy nll_loss":
            "the loss of a model that has learnt nothing follows from its number of classes",
    }),
    *patch("program outline", "tests/running/test_saved_specs.py", has_source=False, targets={
        "torch.nn.utils:clip_grad_norm_": "whether a program clips its gradients is told in its spec",
    }),
)  # fmt: skip
