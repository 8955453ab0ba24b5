"""Switches compiling on for a paper GPU, and off again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from planner import upstream
from planner.paper.compiled import assumptions, caches, time_limit
from planner.paper.recorder import Recorder
from planner.paper.targets import target_of
from planner.upstream import checking


@dataclass(frozen=True, slots=True)
class Compiling:
    """What was compiled on a paper GPU since it was switched on."""

    def assumed(self) -> tuple[str, ...]:
        """What was assumed where a GPU would have been timed, as sentences."""
        return tuple(sorted(assumptions.ASSUMED))

    def graphs(self) -> int:
        """How many graphs Dynamo has captured."""
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])

    def breaks(self) -> tuple[str, ...]:
        """Why Dynamo left graphs, once for each reason."""
        from torch._dynamo.utils import counters

        return tuple(counters["graph_break"])


@contextmanager
def enable(
    arch: str, recorder: Recorder | None = None, *, as_asked: bool = False, seconds: float = time_limit.USUAL_SECONDS
) -> Iterator[Compiling]:
    """Inside, `torch.compile` compiles for the paper GPU that is open (`paper.gpu`), as for a GPU of this architecture.

    The recorder is told of which module and operator compiled allocations are. With `as_asked`, a function that was
    compiled too often is an error, where torch would run it eagerly from then on, and so are strides of its own
    operators that they do not say. Nothing that was compiled is left in this process at the end. Raises TraceError for
    an architecture that is not known, and where compiling takes longer than so many seconds.
    """
    import torch._inductor.codegen.common  # noqa: F401
    from torch._dynamo import trace_rules

    from planner.paper.compiled import cpu_target, generated, graphs, operator_results, registries, users_kernels

    target = target_of(arch)
    checking.enforce("compiling")
    with ExitStack() as stack:
        stack.callback(_forget)
        _forget()
        # Dynamo's table of functions of torch is filled with what torch.cuda has now.
        trace_rules.clear_lru_cache()
        stack.callback(trace_rules.clear_lru_cache)
        stack.enter_context(caches.kept())
        stack.enter_context(_settings(target.arch, as_asked))
        stack.enter_context(registries.registered("cpu" if target.is_cpu else "cuda"))
        stack.enter_context(upstream.patch_targets("inductor", replaced=_replaced(), wrapped=_wrapped()))
        stack.enter_context(users_kernels.launched_as_nothing(target))
        stack.enter_context(operator_results.other_strides(go_on=not as_asked))
        stack.enter_context(graphs.on_paper())
        if target.is_cpu:
            led = {"torch._inductor.compile_fx:compile_fx": cpu_target.on_cpu}
            stack.enter_context(upstream.patch_targets("inductor for a cpu", wrapped=led))
        generated.tell(recorder)
        stack.callback(generated.tell, None)
        limit = time_limit.TimeLimit(seconds)
        told = {"torch._dynamo.callback:CompilationCallbackHandler.install_callbacks": _telling(recorder, limit)}
        stack.enter_context(upstream.patch_targets("compiling told", wrapped=told))
        stack.enter_context(limit.enforced())
        yield Compiling()


def _replaced() -> dict[str, Any]:
    from planner.paper.compiled import timed, unloaded

    # They came with torch 2.13; what stands for them with 2.8.
    chosen = "torch._dynamo.variables.ctx_manager:CUDADeviceVariable"
    exchange: Any = getattr(torch._C, "_accelerator_exchangeDevice", None)
    maybe_exchange: Any = getattr(torch._C, "_accelerator_maybeExchangeDevice", None)
    return {
        f"{chosen}._exchange_fn": staticmethod(exchange),
        f"{chosen}._maybe_exchange_fn": staticmethod(maybe_exchange),
        "torch._inductor.codecache:PyCodeCache.load": unloaded.write_down,
        "torch._inductor.scheduler:has_triton": lambda: True,
        "torch._inductor.fx_passes.pad_mm:has_triton": lambda: True,
        "torch._inductor.kernel.mm_grouped:has_triton": lambda: True,
        "torch.utils._triton:triton_hash_with_backend": lambda: "PAPER",
        "torch._inductor.fx_passes.pad_mm:_should_pad": timed.should_pad,
        "torch._inductor.fx_passes.pad_mm:get_cached_should_pad": timed.should_pad,
    }


def _wrapped() -> dict[str, Any]:
    from torch.utils._triton import has_triton_package

    from planner.paper.compiled import equal_parts, folding, timed, unloaded

    return {
        "torch._dynamo.backends.distributed:SubmodCompiler.compile_submod": equal_parts.compile_once,
        "torch._dynamo.backends.distributed:deepcopy_to_fake_tensor": equal_parts.copied_without_sources,
        "torch._functorch._aot_autograd.runtime_wrappers:FakifiedOutWrapper.post_compile": equal_parts.results_again,
        "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._deduce_value": folding.on_host,
        "torch._inductor.select_algorithm:AlgorithmSelectorCache.__call__": timed.choose_kernel,
        "torch._inductor.template_heuristics.triton:TritonConfig": lambda real: (
            real if has_triton_package() else unloaded.KernelConfig
        ),
    }


@contextmanager
def _settings(arch: str, as_asked: bool) -> Iterator[None]:
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config

    inductor = {
        "compile_threads": 1,
        # Kernels are not compiled, so nothing of them can be bundled.
        "bundle_triton_into_fx_graph_cache": False,
        "triton.autotune_at_compile_time": False,
        # It compares a private pool with the tensors in it by a snapshot of the allocator, of which there is none.
        "triton.slow_path_cudagraph_asserts": False,
    }
    # A state of random numbers would be kept in a generator of CUDA's, which a CPU build lacks; neither takes memory.
    functorch = {"graphsafe_rng_functionalization": False}
    dynamo = {"fail_on_recompile_limit_hit": as_asked}
    # Two of them came with torch 2.7.
    functorch = {name: value for name, value in functorch.items() if hasattr(torch._functorch.config, name)}
    dynamo = {name: value for name, value in dynamo.items() if hasattr(torch._dynamo.config, name)}
    before = torch.compiler.config.cache_key_tag
    torch.compiler.config.cache_key_tag = caches.tag(arch)
    try:
        with (
            torch._inductor.config.patch(inductor),
            torch._functorch.config.patch(functorch),
            torch._dynamo.config.patch(dynamo),
        ):
            yield
    finally:
        torch.compiler.config.cache_key_tag = before


def _telling(recorder: Recorder | None, limit: time_limit.TimeLimit) -> upstream.Wrapper:
    """Around `install_callbacks` (torch 2.13, torch/_dynamo/callback.py), inside which something is compiled, or a
    CUDA graph is captured: that is the program's."""

    def wrap(real: Any) -> Any:
        @contextmanager
        def compiling(handler: Any, *triggers: Any, **options: Any) -> Iterator[None]:
            # Before torch 2.8 nothing says why; graphs were captured unheard.
            captures = any(getattr(each, "name", "") == "CUDAGRAPH_RECORDING" for each in triggers)
            silent = nullcontext() if captures or recorder is None else recorder.compiling()
            with limit.counted(), silent, real(handler, *triggers, **options):
                yield

        return compiling

    return wrap


def _forget() -> None:
    """What torch remembers of an earlier target, and of what was compiled for it."""
    from torch._dynamo.utils import counters
    from torch._inductor import codecache, utils
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.utils import _triton

    torch._dynamo.reset()
    counters.clear()
    assumptions.forget()
    DeviceProperties.create.cache_clear()
    codecache.CacheBase.get_system.cache_clear()
    codecache.PyCodeCache.cache_clear()
    _triton.has_triton.cache_clear()
    # Speeds of the GPU; since torch 2.15 they are remembered for each device.
    for name in ("get_device_tflops", "get_gpu_dram_gbps", "_get_device_tflops", "_get_device_dram_gbps"):
        forget = getattr(getattr(utils, name, None), "cache_clear", None)
        if forget is not None:
            forget()
