"""What planner relies on in transformers and DeepSpeed beyond their public interfaces."""

from __future__ import annotations

from planner.upstream.entries import Change, Entry, Kind, entries

_MIXTURES = "tests/traces/test_mixtures_on_paper.py"
_STAGE_3 = "tests/traces/test_deepspeed_stage3.py"
_STAGES_1_2 = "tests/traces/test_deepspeed.py"
_ZERO = "deepspeed.runtime.zero"

TRANSFORMERS = (
    Entry(
        target="huggingface_hub.constants:HF_HUB_OFFLINE", kind=Kind.PATCH, group="hub offline", has_source=False,
        test="tests/traces/test_architectures.py", why="some configs name a backbone, which would be fetched",
    ),
    Entry(
        target="transformers.integrations.deepspeed:_hf_deepspeed_config_weak_ref", kind=Kind.PATCH,
        group="trainer's deepspeed config", has_source=False, test=_STAGE_3,
        why="under its Trainer a model divides itself while it is made",
    ),
    Entry(
        target="transformers.integrations.deepspeed:is_deepspeed_zero3_enabled", kind=Kind.MIRROR, test=_STAGE_3,
        why="reads the config that is put in the place of the Trainer's",
    ),
    *entries(
        "transformers.modeling_utils", "PreTrainedModel._from_config", "PreTrainedModel._resolve_parallel_plans",
        kind=Kind.PRIVATE, optional=True, has_source=False, test="tests/traces/test_architectures.py",
        why="a model from its config alone; its own plans for tensor and expert parallelism",
    ),
    *entries(
        "transformers.integrations.moe", "grouped_mm_experts_forward",
        kind=Kind.MIRROR, optional=True, test=_MIXTURES,

        why="whole numbers that it copies to the host are found by the names of its variables (paper/values.py)",
    ),
)  # fmt: skip

DEEPSPEED = (
    Entry(
        target="torch.nn.functional:linear", kind=Kind.PATCH, group="deepspeed world", has_source=False, test=_STAGE_3,
        why="deepspeed.zero.Init leaves its own in its place: afterwards torch's is put back",
    ),
    Entry(
        target="deepspeed.comm.torch:build_shm_op", kind=Kind.PATCH, group="deepspeed world", test=_STAGE_3,
        why="compiles a reduction between CPUs at run time; what reduces is torch's process group",
    ),
    Entry(
        target=f"{_ZERO}.partition_parameters:assert_ints_same_as_other_ranks", kind=Kind.PATCH,
        group="deepspeed peers", has_source=False, test=_STAGE_3,
        why="ranks ask whether they go the same way; absent peers agree",
    ),
    Entry(
        target=f"{_ZERO}.partitioned_param_coordinator:assert_ints_same_as_other_ranks", kind=Kind.PATCH,
        group="deepspeed peers", has_source=False, test=_STAGE_3, why="as above",
    ),
    Entry(
        target=f"{_ZERO}.stage3:assert_ints_same_as_other_ranks", kind=Kind.PATCH,
        group="deepspeed peers", has_source=False, test=_STAGE_3, why="as above",
    ),
    *(
        Entry(
            target=target, kind=Kind.PATCH, group="program's deepspeed", has_source=False,
            test="tests/running/test_deepspeed_programs.py",
            why="from here on what a program's DeepSpeed gives up depends on when its events pass",
        )
        for target in (
            "deepspeed.runtime.engine:DeepSpeedEngine.__init__", f"{_ZERO}.partition_parameters:Init.__init__",
        )
    ),
    Entry(
        target="deepspeed.accelerator.cuda_accelerator:CUDA_Accelerator.available_memory", kind=Kind.PATCH,
        group="deepspeed memory", test=_STAGES_1_2,
        why="asks NVML of the machine that plans; stages 1 and 2 flatten on the device if the GPU that is planned for "
        "has the memory",
    ),
    Entry(
        target=f"{_ZERO}.partitioned_param_coordinator:PartitionedParameterCoordinator."
        "_PartitionedParameterCoordinator__all_gather_params_",
        kind=Kind.PATCH, group="deepspeed roles", change=Change.REPORTED, test=_STAGE_3,
        why="allocates what is gathered, which is told as communication",
    ),
    *entries(
        f"{_ZERO}.stage3",
        "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads",
        "DeepSpeedZeroOptimizer_Stage3._DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads",
        kind=Kind.PATCH, group="deepspeed roles", change=Change.REPORTED, test=_STAGE_3,
        why="allocates what is reduced, which is told as communication",
    ),
    *entries(
        f"{_ZERO}.stage_1_and_2",
        "DeepSpeedZeroOptimizer.setup_buckets", "DeepSpeedZeroOptimizer.copy_grads_in_partition",
        "DeepSpeedZeroOptimizer._build_compact_grad_partition_buffer", "DeepSpeedZeroOptimizer._optimizer_step",
        kind=Kind.PATCH, group="deepspeed roles", change=Change.REPORTED, test=_STAGES_1_2,
        why="allocates buckets and gradients of the partition, which are told by what they are for",
    ),
)  # fmt: skip

_OUTSIDE = "tests/running/test_outside_packages.py"
_TRITON = "tests/running/test_triton_in_eager_mode.py"

OUTSIDE = (
    *(
        Entry(
            target=target, kind=Kind.PATCH, group="program launches triton", has_source=False, optional=True,
            test=_TRITON, why="compiles and launches a kernel, which on paper is nothing, or times one",
        )
        for target in (
            "triton.runtime.jit:JITFunction.run", "triton.testing:do_bench", "triton.testing:do_bench_cudagraph",
            "triton:set_allocator",
        )
    ),
    *(
        Entry(
            target=target, kind=Kind.PATCH, group="program's hub kernels", has_source=False, optional=True,
            test=_OUTSIDE, why="fetches compiled kernels from a hub; what they allocate is modelled",
        )
        for target in ("kernels:get_kernel", "kernels.load:get_kernel")
    ),
    *(
        Entry(
            target=target, kind=Kind.PATCH, group="program builds", has_source=False, test=_OUTSIDE,
            why="compiles an extension for a GPU while the program runs",
        )
        for target in ("torch.utils.cpp_extension:load", "torch.utils.cpp_extension:load_inline")
    ),
    Entry(
        target="bitsandbytes.cextension:lib", kind=Kind.PATCH, group="program's bitsandbytes", has_source=False,
        optional=True, test="tests/running/test_bitsandbytes.py",
        why="kernels for a GPU, which write to what Python has allocated for them",
    ),
    Entry(
        target="bitsandbytes.cuda_setup.main:CUDASetup.run_cuda_setup", kind=Kind.PATCH,
        group="program's early bitsandbytes", has_source=False, optional=True,
        test="tests/running/test_bitsandbytes.py", why="up to 0.42 it stops where it finds no CUDA for the GPU",
    ),
    Entry(
        target="transformer_engine.common:load_framework_extension", kind=Kind.PATCH,
        group="program's TransformerEngine", has_source=False, optional=True,
        test="tests/running/test_transformer_engine.py",
        why="finds the extension by its file, of which there is none; it is imported by its name",
    ),
    Entry(
        target="deepspeed.ops.op_builder.builder:OpBuilder.load", kind=Kind.PATCH, group="deepspeed builds",
        has_source=False, optional=True, test=_OUTSIDE, why="compiles an optimizer's kernels at their first use",
    ),
)  # fmt: skip

_HOST = "tests/running/test_bad_programs.py"

_MEMORY = "tests/running/test_host_of_programs.py"

PROGRAM_HOST = (
    Entry(
        target="torch.utils.data:DataLoader._get_iterator", kind=Kind.PATCH, group="program host", has_source=False,
        test="tests/running/test_programs.py", why="its workers are processes; they load the same in this one",
    ),
    Entry(
        target="torch.utils.data.dataloader:_MultiProcessingDataLoaderIter", kind=Kind.PATCH, group="program host",
        has_source=False, test=_HOST, why="libraries make it themselves, where they have loaders of their own",
    ),
    *(
        Entry(
            target=f"{module}:spawn", kind=Kind.PATCH, group="program host", has_source=False, test=_HOST,
            why="a program that starts one process for each GPU of this one starts one, and waits for it",
        )
        for module in ("torch.multiprocessing.spawn", "torch.multiprocessing")
    ),
    Entry(
        target="multiprocessing.process:BaseProcess.start", kind=Kind.PATCH, group="program host", has_source=False,
        test=_HOST, why="a program that starts its ranks itself is told to be started as one of them",
    ),
    Entry(
        target="os:fork", kind=Kind.PATCH, group="program host", has_source=False, test=_HOST,
        why="a GPU on paper does not survive a fork, as CUDA does not",
    ),
    *entries(
        "torch", "save", "load", "UntypedStorage.from_file",
        kind=Kind.PATCH, group="program host memory", has_source=False, test=_MEMORY,
        why="which tensors of the host are a checkpoint's, and which files are mapped",
    ),
    Entry(
        target="torch.serialization:_get_restore_location", kind=Kind.PATCH, group="program host memory",
        has_source=False, test=_MEMORY, why="a program reads what is mapped here: each part is told as it is restored",
    ),
    Entry(
        target="torch.nn:Module._apply", kind=Kind.PATCH, group="program host memory", has_source=False, test=_MEMORY,
        why="every move and cast of a module goes through it: what it had on the host were parameters",
    ),
    Entry(
        target="torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", kind=Kind.PATCH, test=_MEMORY,
        group="program host memory", has_source=False, why="how large a batch is, which workers read ahead",
    ),
    Entry(
        target="torch.library:register_fake", kind=Kind.PATCH, group="program's vision", has_source=False,
        test="tests/running/test_vision_operators.py",
        why="torchvision's wheels name operators there whose library a build without CUDA cannot load",
    ),
)  # fmt: skip
