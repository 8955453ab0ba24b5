"""What planner relies on in transformers and DeepSpeed beyond their public interfaces."""

from __future__ import annotations

from planner.upstream.entries import Change, patch, private

_ARCHITECTURES = "tests/tracing/traces/test_architectures.py"
_HOST = "tests/tracing/running/test_bad_programs.py"
_MEMORY = "tests/tracing/running/test_host_of_programs.py"
_PROGRAMS = "tests/tracing/running/test_deepspeed_programs.py"
_OUTSIDE = "tests/tracing/running/test_outside_packages.py"
_TRANSFORMER_ENGINE = "tests/tracing/running/test_transformer_engine.py"
_TRITON = "tests/tracing/running/test_triton_in_eager_mode.py"

TRANSFORMERS = (
    *patch("hub offline", _ARCHITECTURES, has_source=False, targets={
        "huggingface_hub.constants:HF_HUB_OFFLINE": "some configs name a backbone, which would be fetched",
    }),
    *private(_ARCHITECTURES, has_source=False, optional=True, targets={
        "transformers.modeling_utils:PreTrainedModel._from_config PreTrainedModel._resolve_parallel_plans":
            "a model from its config alone; its own plans for tensor and expert parallelism",
    }),
)  # fmt: skip

DEEPSPEED = (
    *patch("deepspeed peers", _PROGRAMS, has_source=False, targets={
        "deepspeed.runtime.zero.partition_parameters:assert_ints_same_as_other_ranks "
        "deepspeed.runtime.zero.partitioned_param_coordinator:assert_ints_same_as_other_ranks "
        "deepspeed.runtime.zero.stage3:assert_ints_same_as_other_ranks":
            "ranks ask whether they go the same way; absent peers agree",
    }),
    *patch("program's deepspeed", _PROGRAMS, has_source=False, targets={
        "deepspeed.runtime.engine:DeepSpeedEngine.__init__ deepspeed.runtime.zero.partition_parameters:Init.__init__":
            "from here on what a program's DeepSpeed frees depends on when its events pass",
        "deepspeed.runtime.engine:DeepSpeedEngine.backward DeepSpeedEngine.step":
            "computes on the host with what is offloaded; here a step begins",
    }),
    *patch("program's deepspeed", _PROGRAMS, has_source=False, optional=True, targets={
        "deepspeed.accelerator.cuda_accelerator:pynvml":
            "stages 1 and 2 flatten on the device if it says that there is room; it is kept from the first run on",
    }),
    *patch("deepspeed roles", _PROGRAMS, change=Change.REPORTED, has_source=False, optional=True, targets={
        "deepspeed.runtime.engine:DeepSpeedEngine.__init__ DeepSpeedEngine._configure_optimizer DeepSpeedEngine.step":
            "takes a model's parameters and gradients away; makes partitions and states",
        "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3._create_fp16_partitions_with_defragmentation":
            "joins the partitions of parameters",
        "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3._optimizer_step": "steps with gradients in fp32",
    }),
    *patch("deepspeed roles", _PROGRAMS, change=Change.REPORTED, optional=True, part="deepspeed", targets={
        "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator."
        "_PartitionedParameterCoordinator__all_gather_params_":
            "allocates what is gathered, which is told as communication",
        "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads "
        "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads":
            "allocates what is reduced, which is told as communication",
    }),
    *patch("deepspeed roles", _PROGRAMS, change=Change.REPORTED, optional=True, part="deepspeed", targets={
        "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.setup_buckets "
        "DeepSpeedZeroOptimizer.copy_grads_in_partition DeepSpeedZeroOptimizer._optimizer_step "
        "DeepSpeedZeroOptimizer._build_compact_grad_partition_buffer":
            "allocates buckets and gradients of the partition, which are told by what they are for",
    }),
)  # fmt: skip

PROGRAM_HOST = (
    *patch("program host", "tests/tracing/running/test_programs.py", has_source=False, targets={
        "torch.utils.data:DataLoader._get_iterator": "its workers are processes; they load the same in this one",
    }),
    *patch("program host", _HOST, has_source=False, targets={
        "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter":
            "libraries make it themselves, where they have loaders of their own",
    }),
    *private("tests/tracing/running/test_programs.py", has_source=False, targets={
        "torch.utils.data._utils.worker:_worker_info WorkerInfo": "what loads in this process finds itself in a worker",
    }),
    *patch("program host", "tests/tracing/running/test_own_ranks.py", has_source=False, targets={
        "torch.multiprocessing.spawn:spawn start_processes":
            "of the ranks that a program starts this process is the one that is planned",
        "torch.multiprocessing:spawn start_processes": "as torch.multiprocessing.spawn has them",
        "multiprocessing.process:BaseProcess.start":
            "what reaches the GPU is a rank; what does not is forked, and has none",
        "subprocess:Popen.__init__": "a launcher that the program starts is followed, other commands see no GPU",
        "os:system": "as a command of subprocess",
        "os:execve posix_spawn posix_spawnp": "a command that is given an environment sees no GPU of the machine",
        "os:putenv unsetenv": "GPUs of the machine stay hidden, whatever the program says of them",
    }),
    *patch("program host memory", _MEMORY, has_source=False, targets={
        "torch:UntypedStorage.from_file": "a file larger than this machine's memory is mapped too",
        "torch.serialization:_get_restore_location":
            "a program reads what is mapped here: each part is told as it is restored",
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": "how large a batch is, which workers read ahead",
        "torch.autograd.graph:save_on_cpu.__init__": "what is saved on the host are activations",
    }),
    *patch("program batches", "tests/tracing/running/test_varying_sizes.py", has_source=False, targets={
        "torch.utils.data:DataLoader._get_iterator": "what its epoch will give is drawn ahead, in a child process",
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__":
            "the largest batch of an epoch is given early, in the place of another one",
    }),
)  # fmt: skip

OUTSIDE = (
    *patch("program launches triton", _TRITON, has_source=False, optional=True, targets={
        "triton.runtime.jit:JITFunction.run triton.testing:do_bench do_bench_cudagraph triton:set_allocator":
            "compiles and launches a kernel, which on paper is nothing, or times one",
    }),
    *patch("program interprets triton", _TRITON, has_source=False, optional=True, targets={
        "triton.runtime.jit:JITFunction.__call__ triton.runtime.interpreter:_patch_lang_tensor":
            "a kernel of whole numbers is run on the host, with the functions that it calls",
    }),
    *patch("program compiles with cutlass", _OUTSIDE, has_source=False, optional=True, targets={
        "cutlass.base_dsl.compiler:CompileCallable.__call__":
            "compiles a kernel (cutlass.cute.compile), whose launcher on paper is nothing",
    }),
    *patch("program's hub kernels", _OUTSIDE, has_source=False, optional=True, targets={
        "kernels:get_kernel kernels.load:get_kernel":
            "fetches compiled kernels from a hub; what they allocate is modelled",
    }),
    *patch("program builds", _OUTSIDE, has_source=False, targets={
        "torch.utils.cpp_extension:load load_inline": "compiles an extension for a GPU while the program runs",
    }),
    *patch("program's TransformerEngine", _TRANSFORMER_ENGINE, has_source=False, optional=True, targets={
        "transformer_engine.common:load_framework_extension":
            "finds the extension by its file, of which there is none; it is imported by its name",
    }),
    *patch("deepspeed builds", _OUTSIDE, has_source=False, optional=True, targets={
        "deepspeed.ops.op_builder.builder:OpBuilder.load": "compiles an optimizer's kernels at their first use",
    }),
)  # fmt: skip
