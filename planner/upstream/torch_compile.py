"""What compiling on the paper GPU relies on in Dynamo, AOTAutograd and Inductor."""

from __future__ import annotations

from functools import partial

from planner.upstream import entries as listing
from planner.upstream.entries import Kind

_COMPILED = "tests/traces/test_compiled_programs.py"
_CPU_RUNS = "tests/traces/test_compiled_cpu_runs.py"
_INDUCTOR = "torch._inductor"

Entry = partial(listing.Entry, part="compiling")
entries = partial(listing.entries, part="compiling")

PATCHES = (
    *(
        Entry(
            target=f"{module}:has_triton", kind=Kind.PATCH, group="inductor", has_source=False, test=_COMPILED,
            optional="grouped" in module,  # since torch 2.8
            why="asks whether Triton is installed and a driver is there; kernels are written for it, and never run",
        )
        for module in (f"{_INDUCTOR}.scheduler", f"{_INDUCTOR}.fx_passes.pad_mm", f"{_INDUCTOR}.kernel.mm_grouped")
    ),
    Entry(
        target="torch.utils._triton:triton_hash_with_backend", kind=Kind.PATCH, group="inductor", test=_COMPILED,
        why="asks Triton's driver for the name of the compiler, which is written into kernels that never run",
    ),
    Entry(
        target=f"{_INDUCTOR}.codecache:PyCodeCache.load", kind=Kind.PATCH, group="inductor", test=_COMPILED,
        why="loads templates of kernels, which import Triton; their code is written, and never run",
    ),
    Entry(
        target=f"{_INDUCTOR}.template_heuristics.triton:TritonConfig", kind=Kind.PATCH, group="inductor",
        has_source=False, optional=True, test=_COMPILED,
        why="is Triton's own, which need not be installed (since torch 2.9)",
    ),
    Entry(
        target=f"{_INDUCTOR}.fx_passes.pad_mm:_should_pad", kind=Kind.PATCH, group="inductor", optional=True,
        test=_COMPILED,
        why="times a matrix multiplication padded and not; a rule decides instead, and the report says so",
    ),
    Entry(
        target=f"{_INDUCTOR}.fx_passes.pad_mm:get_cached_should_pad", kind=Kind.PATCH, group="inductor",
        test=_COMPILED, why="as above, in torch below 2.11: what was found when it was timed before",
    ),
    Entry(
        target=f"{_INDUCTOR}.select_algorithm:AlgorithmSelectorCache.__call__", kind=Kind.PATCH, group="inductor",
        test=_COMPILED, why="times several kernels for one operation; a rule decides instead, and the report says so",
    ),
    Entry(
        target=f"{_INDUCTOR}.fx_passes.joint_graph:UniformValueConstantFolder._deduce_value", kind=Kind.PATCH,
        group="inductor", test=_COMPILED, why="computes constants of a graph on its device, where they have no values",
    ),
    Entry(
        target="torch._dynamo.backends.distributed:SubmodCompiler.compile_submod", kind=Kind.PATCH, group="inductor",
        has_source=False, test=_COMPILED, why="compiles each part of a graph that DDP splits, the equal ones too",
    ),
    Entry(
        target="torch._dynamo.backends.distributed:deepcopy_to_fake_tensor", kind=Kind.PATCH, group="inductor",
        has_source=False, test=_COMPILED, why="copies with each part what is known of the whole graph",
    ),
    Entry(
        target="torch._functorch._aot_autograd.runtime_wrappers:FakifiedOutWrapper.post_compile", kind=Kind.PATCH,
        group="inductor", has_source=False, test=_COMPILED,
        why="a compiled part answers without running once; where equal parts share it, once for each",
    ),
    *entries(
        "torch._dynamo.variables.ctx_manager", "CUDADeviceVariable._exchange_fn",
        "CUDADeviceVariable._maybe_exchange_fn",
        kind=Kind.PATCH, group="inductor", has_source=False, optional=True,
        test="tests/running/test_compiled_programs.py",
        why="keeps the functions of torch.cuda that were there when it was imported",
    ),
    Entry(
        target="torch._dynamo.callback:CompilationCallbackHandler.install_callbacks", kind=Kind.PATCH,
        group="compiling told", test=_COMPILED, why="what is allocated inside, while compiling, is not the program's",
    ),
    Entry(
        target=f"{_INDUCTOR}.compile_fx:compile_fx", kind=Kind.PATCH, group="inductor for a cpu", has_source=False,
        test=_CPU_RUNS,
        why="compiles for the device of its inputs, which on paper is CUDA also where a CPU is planned for",
    ),
)  # fmt: skip

TRITON = (
    *(
        Entry(
            target=target, kind=Kind.PATCH, group="triton launches", has_source=False, optional=True, test=_COMPILED,
            why="compiles and launches a user's kernel, which on paper is nothing",
        )
        for target in (
            "triton.runtime.jit:JITFunction.run", "triton.runtime.autotuner:Autotuner.run",
            "triton.runtime.autotuner:Heuristics.run",
        )
    ),
    Entry(
        target="triton.runtime.driver:driver", kind=Kind.PRIVATE, has_source=False, optional=True, test=_COMPILED,
        why="which kind of GPU a user's kernel is read for",
    ),
)  # fmt: skip

_GRAPHS = "tests/traces/test_cuda_graphs.py"
CUDA_GRAPHS = (
    *entries(
        "torch.cuda", "CUDAGraph", "graph", "graph_pool_handle",
        kind=Kind.PATCH, group="cuda graphs", has_source=False, test=_GRAPHS,
        why="captures what a GPU is asked for; on paper only what is allocated meanwhile matters",
    ),
    *entries(
        "torch._C",
        "_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_beginAllocateCurrentStreamToPool",
        "_cuda_endAllocateCurrentStreamToPool", "_cuda_releasePool",
        "_cuda_clearCublasWorkspaces", "_cuda_get_conv_benchmark_empty_cache", "_cudnn_set_conv_benchmark_empty_cache",
        "_host_emptyCache", "_tensors_data_ptrs_at_indices_equal", "_construct_CUDA_Tensor_From_Storage_And_Metadata",
        "_has_Standard_Deleter", "_free_And_Remove_DeleterFn", "_set_storage_access_error_msg",
        "_set_storage_data_ptr_access_error_msg", "_cuda_getCheckpointState", "_cuda_setCheckpointPoolState",
        "_cuda_cudaCachingAllocator_is_enabled", "_cuda_cudaCachingAllocator_raw_delete",
        kind=Kind.PATCH, group="cuda graphs", has_source=False, created=True, test=_GRAPHS,
        why="Inductor's trees of CUDA graphs ask a CUDA build for them; they are asked about paper",
    ),
    *entries(
        f"{_INDUCTOR}.cudagraph_trees", "get_obj", "local", "CUDAGraphTreeManager",
        kind=Kind.PRIVATE, has_source=False, test=_GRAPHS,
        why="how often graphs were captured: an iteration that captures is not repeated",
    ),
)  # fmt: skip

GENERATED_CODE = (
    *entries(
        f"{_INDUCTOR}.codegen.wrapper",
        "PythonWrapperCodegen.create", "PythonWrapperCodegen.write_header",
        "PythonWrapperCodegen.write_triton_header_once", "PythonWrapperCodegen.enter_context",
        "PythonWrapperCodegen.generate_end",
        kind=Kind.OVERRIDE, test=_COMPILED, why="generated code allocates on paper and says of what module it is",
    ),
    *entries(
        f"{_INDUCTOR}.async_compile", "AsyncCompile.triton", "AsyncCompile.cpp", "AsyncCompile.cpp_pybinding",
        kind=Kind.OVERRIDE, has_source=False, test=_COMPILED, why="kernels are not compiled, and launched as nothing",
    ),
    Entry(
        target=f"{_INDUCTOR}.codegen.cuda.device_op_overrides:CUDADeviceOpOverrides.import_get_raw_stream_as",
        kind=Kind.OVERRIDE, test=_COMPILED, why="generated code asks the driver for the stream of its launches",
    ),
    Entry(
        target="torch._dynamo.device_interface:CudaInterface", kind=Kind.OVERRIDE, test=_COMPILED,
        why="keeps the functions of torch.cuda that were there when it was imported; asks for Triton",
    ),
)  # fmt: skip

REGISTRIES = (
    *entries(
        f"{_INDUCTOR}.codegen.common", "register_backend_for_device", "register_device_op_overrides",
        "init_backend_registration", "get_device_op_overrides",
        kind=Kind.PRIVATE, test=_COMPILED, why="names what writes code for a device",
    ),
    *entries(
        f"{_INDUCTOR}.codegen.common", "device_codegens", "device_op_overrides_dict",
        kind=Kind.PRIVATE, has_source=False, test=_COMPILED, why="as above, kept and put back",
    ),
    Entry(
        target="torch._dynamo.compiled_autograd:_enable", kind=Kind.PRIVATE, has_source=False, test=_COMPILED,
        why="compiles a backward as a whole where a job asks for it; the public setting does so within a compiled call",
    ),
    Entry(
        target="torch._dynamo.device_interface:register_interface_for_device", kind=Kind.PRIVATE, test=_COMPILED,
        why="names what answers for a device",
    ),
    *entries(
        "torch._dynamo.trace_rules", "clear_lru_cache",
        kind=Kind.PRIVATE, test=_COMPILED, why="knows functions of torch.cuda, which paper replaces",
    ),
    *entries(
        "torch._dynamo.variables.torch", "constant_fold_functions", "constant_fold_functions_need_guards",
        kind=Kind.PRIVATE, has_source=False, test="tests/running/test_compiled_programs.py",
        why="are called while a function is compiled; those of torch.cuda, which paper replaces, are no others",
    ),
    *entries(
        "torch._dynamo.utils", "counters",
        kind=Kind.PRIVATE, has_source=False, test=_COMPILED, why="how many graphs were captured, and what broke them",
    ),
    *entries(
        "torch._library.simple_registry", "singleton",
        kind=Kind.PRIVATE, has_source=False, test="tests/running/test_compiled_programs.py",
        why="whether a program itself says what an operator returns, which may be wrong",
    ),
    Entry(
        target="torch._dynamo.types:ConvertFrameReturn", kind=Kind.PRIVATE, has_source=False, optional=True,
        test="tests/running/test_compiled_programs.py", why="how Dynamo is told that a frame is not compiled",
    ),
    Entry(
        target="torch._guards:TracingContext.get", kind=Kind.PRIVATE, test=_CPU_RUNS,
        why="the tensors without memory that a program was captured with",
    ),
)  # fmt: skip

INDUCTOR = (*PATCHES, *TRITON, *CUDA_GRAPHS, *GENERATED_CODE, *REGISTRIES)
