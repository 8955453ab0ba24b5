"""What Inductor takes to time its kernels: of several configurations each is run where the kernel is first launched.

Where its cache is empty, as in a first run in a new container, everything is timed; where it is filled, nothing. Nobody
says which of the two a run will be, so that what timing takes is recorded as an operator's that can be left out
(`planner.events.TIMING`), but where the job has switched its cache off (TORCHINDUCTOR_FORCE_DISABLE_CACHES).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.config

from planner.events import TIMING
from planner.paper import work_records
from planner.paper.compiled.patches import ASSUMED
from planner.paper.outside.operators import TRITON_BUFFER_BYTES, benchmark, record_operator

_UNREAD = "the kernel {kernel} is launched without being timed: its configurations cannot be read ({error})"


def _run_configurations(tuner: Any, *arguments: Any, **options: Any) -> None:
    """Torch's `CachingAutotuner` of a kernel times all configurations, with what the kernel is launched with."""
    tuner.launchers = [_Launcher(config) for config in tuner.configs]
    options.pop("stream", None)
    with work_records.part_of_a_launch(), recorded_as_timing():
        tuner.benchmark_all_configs(*arguments, **options)


def recorded_as_timing() -> AbstractContextManager[None]:
    """Inside, what is allocated is what a first run with an empty cache takes besides."""
    is_sure = torch._inductor.config.force_disable_caches
    return nullcontext() if is_sure else record_operator(TIMING.replace(".", "::"))


def untimed_kernel(name: str, source: str) -> Callable[..., None] | None:
    """What times a kernel at its first launch, by the heuristics above it in Inductor's code; None where they list one
    configuration, which is not timed (torch/_inductor/runtime/triton_heuristics.py)."""
    from torch._inductor.runtime import hints, triton_heuristics

    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    listed = ((each, by) for each in functions for by in each.decorator_list if isinstance(by, ast.Call))
    kernel, heuristics = next(listed, (None, None))  # its helpers, which stand before it, have none
    if kernel is None or heuristics is None:
        return None
    names = {**vars(triton_heuristics), **vars(hints), "triton_heuristics": triton_heuristics, "__file__": f"{name}.py"}
    try:
        tuner = eval(ast.unparse(heuristics), {**names, "AttrsDescriptor": _Alignment})(_describe_kernel(kernel))
    except Exception as error:  # of heuristics that are not those read; the plan lacks no more than a buffer
        ASSUMED.add(_UNREAD.format(kernel=name, error=f"{type(error).__name__}: {error}"))
        return None
    return partial(_run_configurations, tuner) if len(tuner.configs) > 1 else None


def _describe_kernel(definition: ast.FunctionDef) -> Any:
    """What the tuner reads of `triton.JITFunction`: its name, and its arguments in order."""
    parameters = [argument.arg for argument in definition.args.args]
    scope: dict[str, Any] = {}
    exec(f"def {definition.name}({', '.join(parameters)}): ...", scope)
    return SimpleNamespace(fn=scope[definition.name], arg_names=parameters, __name__=definition.name)


class _Alignment:
    """Triton's `AttrsDescriptor`: which arguments are divisible by 16; decides nothing here."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None: ...

    @classmethod
    def from_dict(cls, _content: Any) -> _Alignment:
        return cls()


class _Launcher:
    """A compiled configuration, which launches nothing."""

    n_regs = n_spills = shared = 0
    cache_hash = ""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, *_arguments: Any, **_options: Any) -> None: ...


def benchmark_gpu(benchmarker: Any, call: Callable[[], Any], **_settings: Any) -> float:
    """In place of the method of `TritonBenchmarker` and `InductorBenchmarker` (torch 2.13,
    torch/_inductor/runtime/benchmarking.py), of which the second's buffer is as large as the GPU's L2 cache."""
    by_cache = hasattr(type(benchmarker), "L2_cache_size")
    buffer_bytes = torch.cuda.get_device_properties().L2_cache_size if by_cache else TRITON_BUFFER_BYTES
    return benchmark(call, buffer_bytes, "inductor::benchmark")
