"""CUTLASS's DSL on paper (flash-attn 4, quack): kernels that it compiles are launched as nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from planner import upstream
from planner.tracing.program.cuda import forget_values


def patched() -> AbstractContextManager[None]:
    """Inside, `cutlass.cute.compile` compiles nothing; `cutlass.cute` has just been imported.

    A kernel writes to tensors that it is given. Its own launcher has CUDA's runtime linked in, which asks the driver
    for tables that are not documented (nvidia-cutlass-dsl 4.8, libcute_dsl_runtime.so).
    """

    def launch(*arguments: Any, **named: Any) -> None:
        forget_values((*arguments, *named.values()))

    def compile_nothing(_options: Any, _kernel: Any, *_arguments: Any, **_named: Any) -> Any:
        return launch

    replaced = {"cutlass.base_dsl.compiler:CompileCallable.__call__": compile_nothing}
    return upstream.patch_targets("program compiles with cutlass", replaced=replaced)
