"""What compiling on the paper GPU relies on in Dynamo, AOTAutograd and Inductor."""

from __future__ import annotations

from functools import partial

from planner.upstream import entries

_COMPILED = "tests/tracing/traces/test_compiled_programs.py"
_GRAPHS = "tests/tracing/traces/test_cuda_graphs.py"
_PROGRAMS = "tests/tracing/running/test_compiled_programs.py"

patch = partial(entries.patch, part="compiling")
override = partial(entries.override, part="compiling")
private = partial(entries.private, part="compiling")

PATCHES = (
    *patch("inductor", _COMPILED, has_source=False, targets={
        "torch._dynamo.backends.distributed:SubmodCompiler.compile_submod":
            "compiles each part of a graph that DDP splits, the equal ones too",
        "torch._dynamo.backends.distributed:deepcopy_to_fake_tensor":
            "copies with each part what is known of the whole graph",
        "torch._functorch._aot_autograd.runtime_wrappers:FakifiedOutWrapper.post_compile":
            "a compiled part answers without running once; where equal parts share it, once for each",
    }),
    *patch("inductor", _COMPILED, has_source=False, optional=True, targets={
        "torch._inductor.runtime.benchmarking:InductorBenchmarker.benchmark_gpu TorchProfilerBenchmarker.benchmark_gpu":
            "runs a kernel's configurations on a GPU to time them (since torch 2.7)",
    }),
    *patch("inductor", _COMPILED, has_source=False, targets={
        "torch._inductor.runtime.benchmarking:TritonBenchmarker.benchmark_gpu":
            "runs a kernel's configurations on a GPU to time them",
    }),
    *patch("inductor", _COMPILED, targets={
        "torch.utils._triton:triton_hash_with_backend":
            "reads all of Triton's files for a name that is written into kernels, which never run: seconds",
        "torch._inductor.fx_passes.pad_mm:get_cached_should_pad":
            "says what was found when such a multiplication was timed before; a rule decides instead",
        "torch._inductor.select_algorithm:AlgorithmSelectorCache.__call__":
            "times several kernels for one operation; a rule decides instead, and the report says so",
        "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._deduce_value":
            "computes constants of a graph on its device, where they have no values",
    }),
    *patch("inductor", _COMPILED, optional=True, targets={
        "torch._inductor.fx_passes.pad_mm:_should_pad torch._inductor.fx_passes.pad_mm:_should_pad_bench":
            "asks whether such a multiplication was timed, padded and not; a rule decides, and the report says so",
    }),
    *patch("compiling told", _COMPILED, targets={
        "torch._dynamo.callback:CompilationCallbackHandler.install_callbacks":
            "what is allocated inside, while compiling, is not the program's",
    }),
)  # fmt: skip

TRITON = (
    *patch("triton launches", _COMPILED, has_source=False, optional=True, targets={
        "triton.runtime.jit:JITFunction.run triton.runtime.autotuner:Autotuner.run Heuristics.run":
            "compiles and launches a user's kernel, which on paper is nothing",
    }),
    *private(_COMPILED, has_source=False, optional=True, targets={
        "triton.runtime.driver:driver": "which kind of GPU a user's kernel is read for",
    }),
)  # fmt: skip

CUDA_GRAPHS = (
    *patch("states of private pools", _GRAPHS, has_source=False, targets={
        "torch._C:_cuda_getCheckpointState _cuda_setCheckpointPoolState":
            "an allocator that is put in the place of torch's own has none",
    }),
    *private(_GRAPHS, has_source=False, targets={
        "torch._inductor.cudagraph_trees:get_obj local CUDAGraphTreeManager":
            "how often graphs were captured: an iteration that captures is not repeated",
    }),
)  # fmt: skip

GENERATED_CODE = (
    *override(_COMPILED, targets={
        "torch._inductor.codegen.wrapper:PythonWrapperCodegen.create PythonWrapperCodegen.write_header "
        "PythonWrapperCodegen.enter_context PythonWrapperCodegen.generate_end":
            "generated code allocates on paper and says of what module it is",
    }),
    *override(_COMPILED, has_source=False, targets={
        "torch._inductor.async_compile:AsyncCompile.triton":
            "kernels are not compiled, and launched as nothing",
    }),
)  # fmt: skip

REGISTRIES = (
    *private(_COMPILED, targets={
        "torch._inductor.codegen.common:register_backend_for_device init_backend_registration":
            "names what writes code for a device",
        "torch._dynamo.trace_rules:clear_lru_cache": "knows functions of torch.cuda, which paper replaces",
    }),
    *private(_COMPILED, has_source=False, targets={
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner.benchmark_all_configs":
            "runs all configurations of a kernel, on copies of what it changes",
        "torch._inductor.codegen.common:device_codegens":
            "names what writes code for a device: kept and put back",
        "torch._dynamo.compiled_autograd:_enable":
            "compiles a backward as a whole where a job asks for it; the public setting does so within a compiled call",
        "torch._dynamo.utils:counters": "how many graphs were captured, and what broke them",
    }),
    *private(_PROGRAMS, has_source=False, targets={
        "torch._library.simple_registry:singleton":
            "whether a program itself says what an operator returns, which may be wrong",
    }),
    *private(_PROGRAMS, has_source=False, optional=True, targets={
        "torch._dynamo.types:ConvertFrameReturn": "how Dynamo is told that a frame is not compiled",
    }),
)  # fmt: skip

INDUCTOR = (*PATCHES, *TRITON, *CUDA_GRAPHS, *GENERATED_CODE, *REGISTRIES)
