"""What the paper GPU relies on in torch's single-device code."""

from __future__ import annotations

from planner.upstream.entries import Change, patch, private, wrapped

_COMPILED = "tests/tracing/running/test_compiled_programs.py"
_HOST = "tests/tracing/running/test_large_hosts.py"
_MEASURED = "tests/truth/measuring/test_measured_programs.py"
_RUN = "tests/tracing/running/test_programs.py"
_STORAGES = "tests/tracing/running/test_storages.py"

PRIVATE = (
    *private("tests/tracing/traces/test_kernels_sized_by_data.py", has_source=False, targets={
        "torch._C:_current_autograd_node": "which backward reads a value that a tensor on paper lacks",
    }),
    *private("tests/tracing/running/test_function_transforms.py", has_source=False, targets={
        "torch._C._functorch:is_functorch_wrapped_tensor get_unwrapped": "whose memory a tensor inside a transform has",
        "torch._C:_has_storage": "whether a tensor has memory of its own",
    }),
    *private(_STORAGES, targets={
        "torch.library:Library._destroy": "operators are given back when a program has ended",
    }),
)  # fmt: skip

ON_CUDA = (
    *private("tests/tracing/running/test_on_cuda.py", has_source=False, optional=True, targets={
        "torch._C:_cuda_clearCublasWorkspaces": "workspaces that an earlier trace of this process has left",
    }),
    *private("tests/tracing/running/test_varying_sizes.py", has_source=False, targets={
        "torch.cuda:_is_in_bad_fork": "a child that looks ahead goes on with CUDA on paper, which survives a fork",
    }),
    *patch("program's cuda", "tests/tracing/running/test_on_cuda.py", has_source=False, optional=True, targets={
        "torch._C:_cuda_memoryStats _cuda_resetPeakMemoryStats _cuda_resetAccumulatedMemoryStats "
        "_cuda_getMemoryFraction _cuda_setMemoryFraction _cuda_memorySnapshot _accelerator_getDeviceStats "
        "_accelerator_resetPeakStats _accelerator_resetAccumulatedStats _accelerator_isAllocatorInitialized "
        "_accelerator_getMemoryInfo":
            "an allocator that is put in the place of torch's own keeps no statistics: planner's replay does",
        "torch._C:_cuda_cudaCachingAllocator_enable _cuda_cudaCachingAllocator_set_allocator_settings "
        "_accelerator_setAllocatorSettings": "settings are those of planner's replay",
    }),
    *patch("program's cuda", "tests/tracing/running/test_bad_programs.py", has_source=False, optional=True, targets={
        "torch._C:_cuda_init":
            "settings are read, and refused, when CUDA starts, and its generators begin with the same numbers",
        "torch.cuda:MemPool use_mem_pool CUDAPluggableAllocator change_current_allocator":
            "planner's allocator is in the place of torch's own, and knows neither pools nor others",
        "torch.cuda:device_memory_used memory_usage utilization temperature power_draw clock_rate list_gpu_processes":
            "they ask NVIDIA's management library, which says what planner's replay knows",
    }),
    *patch("events", "tests/tracing/running/test_deepspeed_programs.py", has_source=False, targets={
        "torch.cuda.streams:Event.query": "an event is done at once on paper, but for a program that is to wait for it",
    }),
    *patch("program's cuda", "tests/tracing/running/test_on_cuda.py", has_source=False, targets={
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
    *patch("phases heard", "tests/truth/measuring/test_recorders.py", has_source=False, targets={
        "torch.autograd.profiler:record_function.__enter__": "a program is measured in each phase that it names by it",
        "torch.autograd:_engine_run_backward": "a program that names none is measured in its backwards",
    }),
    *wrapped(_MEASURED, change=Change.REPORTED, has_source=False, optional=True, part="measuring", targets={
        "torch.cuda:reset_peak_memory_stats torch.cuda.memory:reset_peak_memory_stats "
        "torch.accelerator:reset_peak_memory_stats torch.accelerator.memory:reset_peak_memory_stats":
            "a measured program that sets its counters back keeps the peaks from before",
    }),
)  # fmt: skip

PROGRAMS = (
    *patch("program watched", _RUN, has_source=False, targets={
        "torch.autograd:_engine_run_backward":
            "a program's backwards begin there, those of torch.autograd.grad too (autograd/__init__.py)",
        "torch.optim:Optimizer.__init__":
            "a program is watched until each of its optimizers has stepped, and for one that has not there is no hook",
        "torch:save load": "that a program saves or loads a checkpoint is told in its report",
        "torch.autograd.profiler:record_function.__enter__ record_function.__exit__":
            "a program names its phases by them (planner.training.phases)",
    }),
    *patch("program storages", _STORAGES, has_source=False, targets={
        "torch:UntypedStorage.__new__":
            "on the host it passes by the allocator that is heard of (torch/csrc/Storage.cpp, GetDefaultCPUAllocator)",
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
    *patch("program watched", _RUN, has_source=False, targets={
        "torch.nn.utils:get_total_norm clip_grads_with_norm_":
            "gradients on the host that nobody has written are neither read nor scaled",
        "torch.distributed.fsdp:FullyShardedDataParallel.clip_grad_norm_": "it clips by itself",
        "torch.nn.utils.clip_grad:_get_total_norm _clip_grads_with_norm_": "clip_grad_norm_ calls them by these names",
    }),
)  # fmt: skip
