"""Compiles parts of the step by torch.compile: the model or its blocks, the loss, the optimizer's step.

As torchtitan does it: what recomputes is compiled with its recomputation, and what is compiled is then sharded or
replicated. Hooks of a compiled module are outside of what is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from planner.errors import SpecError
from planner.job import schema
from planner.training import blocks

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compile_model(model: nn.Module, spec: schema.Compile | None, pattern: str = "") -> list[nn.Module]:
    """Compiles the forward of the model or of each of its blocks, in place; the modules that were compiled.

    Raises SpecError for blocks that are not found.
    """
    if spec is None:
        return []
    if "model" in spec.scope:
        compiled = [model]
    elif "blocks" in spec.scope:
        compiled = [block for _, block in blocks.find(model, pattern)]
        if not compiled:
            raise SpecError(
                f"no repeated layers are found in {type(model).__name__}",
                remedy="say which modules are compiled in model.blocks, or compile the model",
                place="train.compile.scope",
            )
    else:
        return []
    for module in compiled:
        module.forward = _compile(module.forward, spec)
    return compiled


def compile_loss(loss: _Function, spec: schema.Compile | None) -> _Function:
    """The function that computes the loss, compiled where the job says so."""
    return _compile(loss, spec) if spec is not None and "loss" in spec.scope else loss


def compile_optimizer(optimizer: torch.optim.Optimizer, spec: schema.Compile | None) -> None:
    """Compiles the optimizer's step, in place, where the job says so."""
    if spec is not None and "optimizer" in spec.scope:
        optimizer.step = _compile(optimizer.step, spec)  # type: ignore[method-assign]


def compiled_backward(spec: schema.Compile | None) -> AbstractContextManager[None]:
    """Inside, a backward is captured as a whole and compiled, where the job says so (compiled autograd)."""
    if spec is None or not spec.autograd:
        return nullcontext()
    from torch._dynamo import compiled_autograd

    return compiled_autograd._enable(partial(_compile, spec=spec))


def fewest_iterations(spec: schema.Compile | None) -> int:
    """After how many a compiled step does what it goes on doing: CUDA graphs are warmed up, captured, captured again
    where what they read came to lie elsewhere, and then replayed."""
    return 4 if spec is not None and spec.mode in ("reduce-overhead", "max-autotune") else 0


def forget_compiled(spec: schema.Compile | None) -> None:
    """A step that compiles begins as in a fresh process: with nothing compiled."""
    if spec is not None:
        torch.compiler.reset()


def graphs_so_far() -> tuple[int, int]:
    """How many graphs this process has compiled, and how often it began to capture CUDA graphs of them: where one was
    in between, there is no repetition."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0, 0
    return int(sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]), _captures_so_far()


def _captures_so_far() -> int:
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return 0
    containers = trees.get_obj(trees.local, "tree_manager_containers").values()
    return sum(each.tree_manager.debug_fail_counter for each in containers if each.tree_manager is not None)


def _compile(function: _Function, spec: schema.Compile) -> _Function:
    mode = None if spec.mode == "default" else spec.mode
    compiled: Any = torch.compile(
        function, backend=spec.backend, mode=mode, fullgraph=spec.fullgraph, dynamic=spec.dynamic
    )
    return compiled  # type: ignore[no-any-return]
