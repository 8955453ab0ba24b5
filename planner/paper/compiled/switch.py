"""Switches compiling on for a paper GPU, and off again: settings, the folder of compiled files, a time limit."""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from planner import upstream
from planner.errors import TraceError
from planner.paper.compiled import kernel_timing, patches
from planner.paper.recorder import Recorder
from planner.runtime.child import temporary_folder
from planner.runtime.user_cache import inductor_folder
from planner.upstream import checking


@contextmanager
def variable_set(name: str, value: str) -> Iterator[None]:
    """Inside, the variable has this value; then what it had, or it is gone."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextmanager
def _kept_folder() -> Iterator[None]:
    """Inside, Inductor's files lie where planner keeps them (`inductor_folder`); in a folder of their own, removed at
    the end, where that is not writable, or nothing is to be kept.

    Inductor writes every file under another name first and renames it: several processes may use the folder.
    """
    folder = inductor_folder()
    with ExitStack() as stack:
        if folder is None or not _can_write(folder):
            folder = Path(stack.enter_context(temporary_folder("inductor-")))
        stack.enter_context(variable_set("TORCHINDUCTOR_CACHE_DIR", str(folder)))
        yield


def _can_write(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


USUAL_SECONDS = 900.0
"""For all that is compiled for one step, by the clock: three times what an isolated process has for all it does."""


class _TooLongError(BaseException):
    """Thrown into the thread that compiles. No Exception: compilers catch those and go on without what failed."""


class TimeLimit:
    """Adds up what compiling takes, of all threads."""

    def __init__(self, seconds: float = USUAL_SECONDS) -> None:
        self._seconds, self._left = seconds, seconds
        self._compiling: set[int] = set()

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Around all that may compile. Raises TraceError when the time is over."""
        try:
            yield
        except _TooLongError:
            raise TraceError(
                f"compiling took more than {self._seconds:g} s",
                allowed=f"at most {self._seconds:g} s for one step",
                remedy="compile the blocks instead of the model (equal ones are compiled once), or delete it to plan"
                " the eager step",
                place="train.compile",
            ) from None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around one compilation; what is compiled within it counts with it."""
        thread = threading.get_ident()
        if thread in self._compiling:
            yield
            return
        # As if the thread had raised this at its next instruction.
        error = ctypes.c_ulong(thread), ctypes.py_object(_TooLongError)
        timer = threading.Timer(max(self._left, 0), ctypes.pythonapi.PyThreadState_SetAsyncExc, error)
        timer.daemon = True
        began = time.monotonic()
        self._compiling.add(thread)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._compiling.discard(thread)
            self._left -= time.monotonic() - began


class Compiling:
    """What was compiled on a paper GPU since it was switched on."""

    def assumed(self) -> tuple[str, ...]:
        """What was assumed where a GPU would have been timed, as sentences."""
        return tuple(sorted(patches.ASSUMED))

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
    recorder: Recorder | None = None, *, as_asked: bool = False, seconds: float = USUAL_SECONDS
) -> Iterator[Compiling]:
    """Inside, `torch.compile` compiles for the paper GPU that is open (`paper.gpu`).

    The recorder hears of which module and operator compiled allocations are. With `as_asked`, a function that was
    compiled too often is an error, where torch would run it eagerly from then on, and so are strides of its own
    operators that they do not say. Nothing that was compiled is left in this process at the end. Raises TraceError
    where compiling takes longer than so many seconds.
    """
    import torch._inductor.codegen.common  # noqa: F401
    from torch._dynamo import trace_rules

    from planner.paper.compiled import generated, triton_kernels

    checking.enforce("compiling")
    with ExitStack() as stack:
        stack.callback(_forget)
        _forget()
        # Dynamo's table of functions of torch is filled with what torch.cuda has now.
        trace_rules.clear_lru_cache()
        stack.callback(trace_rules.clear_lru_cache)
        stack.enter_context(_kept_folder())
        stack.enter_context(_settings(as_asked))
        stack.enter_context(generated.registered())
        stack.enter_context(upstream.patch_targets("inductor", replaced=_REPLACED, wrapped=_WRAPPED))
        stack.enter_context(triton_kernels.launched_as_nothing())
        stack.enter_context(generated.other_strides(go_on=not as_asked))
        stack.enter_context(upstream.patch_targets("states of private pools", replaced=_PRIVATE_POOLS))
        generated.tell(recorder)
        stack.callback(generated.tell, None)
        limit = TimeLimit(seconds)
        callbacks = "torch._dynamo.callback:CompilationCallbackHandler.install_callbacks"
        watched = {callbacks: _watching(recorder, limit)}
        stack.enter_context(upstream.patch_targets("compiling told", wrapped=watched))
        stack.enter_context(limit.enforced())
        yield Compiling()


def _set_pool_back(_device: int, _state: object, _stale: Sequence[int], live: Sequence[int]) -> None:
    """Sets a private pool back to where it was when a graph had been captured: without a living tensor all is free."""
    if live:
        raise TraceError(
            "a CUDA graph is captured after others were replayed whose results are alive",
            allowed="a step that runs the same compiled parts in the same order each time",
            remedy="compile without CUDA graphs (mode: default, or max-autotune-no-cudagraphs)",
            place="train.compile.mode",
        )


_PRIVATE_POOLS: Mapping[str, Any] = {
    "torch._C:_cuda_getCheckpointState": lambda _device, _pool: object(),
    "torch._C:_cuda_setCheckpointPoolState": _set_pool_back,
}
"""Of trees of CUDA graphs (torch 2.13, torch/_inductor/cudagraph_trees.py), whose states torch's allocator keeps."""


_REPLACED: Mapping[str, Any] = {
    "torch.utils._triton:triton_hash_with_backend": lambda: "PAPER",
    "torch._inductor.fx_passes.pad_mm:get_cached_should_pad": kernel_timing.cached_decision,
    "torch._inductor.runtime.benchmarking:TritonBenchmarker.benchmark_gpu": kernel_timing.benchmark_gpu,
    "torch._inductor.runtime.benchmarking:InductorBenchmarker.benchmark_gpu": kernel_timing.benchmark_gpu,
    "torch._inductor.runtime.benchmarking:TorchProfilerBenchmarker.benchmark_gpu": kernel_timing.benchmark_gpu,
}
_WRAPPED: Mapping[str, Any] = {
    "torch._dynamo.backends.distributed:SubmodCompiler.compile_submod": patches.compile_once,
    "torch._dynamo.backends.distributed:deepcopy_to_fake_tensor": patches.copied_without_sources,
    "torch._functorch._aot_autograd.runtime_wrappers:FakifiedOutWrapper.post_compile": patches.results_again,
    "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._deduce_value": patches.on_host,
    "torch._inductor.fx_passes.pad_mm:_should_pad": kernel_timing.decide_by_rule,
    "torch._inductor.fx_passes.pad_mm:_should_pad_bench": kernel_timing.decide_by_rule,
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.__call__": patches.choose_kernel,
}


@contextmanager
def _settings(as_asked: bool) -> Iterator[None]:
    import torch._dynamo.config
    import torch._inductor.config

    inductor = {
        "compile_threads": 1,
        # Kernels are not compiled, so nothing of them can be bundled.
        "bundle_triton_into_fx_graph_cache": False,
        "triton.autotune_at_compile_time": False,
        # It compares a private pool with the tensors in it by a snapshot of the allocator, of which there is none.
        "triton.slow_path_cudagraph_asserts": False,
    }
    # The second is its name in torch 2.6.
    dynamo = {"fail_on_recompile_limit_hit": as_asked, "fail_on_cache_limit_hit": as_asked}
    dynamo = {name: value for name, value in dynamo.items() if hasattr(torch._dynamo.config, name)}
    before = torch.compiler.config.cache_key_tag
    # What generated code depends on beside the program, torch and Inductor's settings: this folder, and the GPU, of
    # which Inductor's own key has the name alone; a job may give none.
    gpu = torch.cuda.get_device_properties()
    digest = hashlib.sha256(repr((gpu.major, gpu.minor, gpu.multi_processor_count)).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    torch.compiler.config.cache_key_tag = f"planner-{digest.hexdigest()[:16]}"
    try:
        with torch._inductor.config.patch(inductor), torch._dynamo.config.patch(dynamo):
            yield
    finally:
        torch.compiler.config.cache_key_tag = before


_TRIGGERS_THAT_RUN = ("CUDAGRAPH_RECORDING", "TRITON_AUTOTUNING")


def _watching(recorder: Recorder | None, limit: TimeLimit) -> upstream.Wrapper:
    """Around `install_callbacks` (torch 2.13, torch/_dynamo/callback.py), inside which something is compiled; or a
    CUDA graph is captured, or kernels are timed (torch 2.8), which is the program's."""

    def wrap(real: Any) -> Any:
        @contextmanager
        def compiling(handler: Any, *triggers: Any, **options: Any) -> Iterator[None]:
            # Before torch 2.8 nothing says why; graphs were captured unheard.
            runs = any(getattr(trigger, "name", "") in _TRIGGERS_THAT_RUN for trigger in triggers)
            silent = nullcontext() if runs or recorder is None else recorder.compiling()
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

    from planner.paper.compiled import generated

    torch._dynamo.reset()
    generated.make_kernel.cache_clear()
    counters.clear()
    patches.forget()
    kernel_timing.forget_timings()
    DeviceProperties.create.cache_clear()
    codecache.CacheBase.get_system.cache_clear()
    codecache.PyCodeCache.cache_clear()
    _triton.has_triton.cache_clear()
    # Speeds of the GPU. Since torch 2.15 the private functions remember them for each device, and the others nothing.
    for name in ("get_device_tflops", "get_gpu_dram_gbps", "_get_device_tflops", "_get_device_dram_gbps"):
        remembering: Any = getattr(utils, name, None)
        if hasattr(remembering, "cache_clear"):
            remembering.cache_clear()
