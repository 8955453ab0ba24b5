"""Finds a model's repeated layers, and has them recompute or offload activations, or be compiled."""

from __future__ import annotations

import fnmatch
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from planner.errors import SpecError, TraceError
from planner.job import schema
from planner.training.keyword_arguments import check_arguments


def find_blocks(model: nn.Module, pattern: str = "") -> list[nn.Module]:
    """The blocks, in the model's order, none inside another.

    With a `pattern` (`model.layers.*`, where `*` stands for one part of a path) the modules that match it. Without,
    those that transformers marks as checkpointable (`GradientCheckpointingLayer`), or else the members of every
    ModuleList or Sequential of at least two layers of one class, or of one layer where there are no two. Raises
    SpecError if a pattern matches nothing.
    """
    modules = list(model.named_modules())
    if not pattern:
        # As transformers marks them; which library does so, and from where, has changed.
        marked = [
            module
            for _, module in modules
            if any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
        ]
        return _outermost(marked) or _outermost(_repeated(model, 2)) or _outermost(_repeated(model, 1))
    chosen = [module for path, module in modules if matches(path, pattern)]
    if chosen:
        return _outermost(chosen)
    lists = [path for path, module in modules if isinstance(module, nn.ModuleList)]
    raise SpecError(
        f"no module of {type(model).__name__} matches {pattern!r}",
        allowed=", ".join(f"{path}.*" for path in lists) or "paths of the model's modules",
        place="model.blocks",
    )


def matches(path: str, pattern: str) -> bool:
    """Whether the path of a module is one of the pattern, in which `*` stands for one part."""
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _repeated(model: nn.Module, at_least: int) -> list[nn.Module]:
    members: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) >= at_least:
            members += module.children() if len({type(child) for child in module}) == 1 else ()
    return members


def _outermost(modules: list[nn.Module]) -> list[nn.Module]:
    inside: set[nn.Module] = set()
    kept = []
    for module in modules:
        if module not in inside:
            inside.update(module.modules())
            kept.append(module)
    return kept


def _require_blocks(model: nn.Module, pattern: str, verb: str, place: str, other: str = "") -> list[nn.Module]:
    modules = find_blocks(model, pattern)
    if not modules:
        raise SpecError(
            f"no repeated layers are found in {type(model).__name__}",
            remedy=f"say which modules are {verb} in model.blocks{other}",
            place=place,
        )
    return modules


_aten = torch.ops.aten
_MATMULS = (_aten.mm.default, _aten.addmm.default)
_SAVED = {
    *_MATMULS,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""What `selective` keeps: attention and every second matmul, the policy of torchtitan's operator-level checkpointing
(torchtitan/distributed/activation_checkpoint.py), with addmm beside mm for layers that have a bias."""


def apply_recompute(model: nn.Module, spec: schema.Recompute, pattern: str = "") -> None:
    """Makes the chosen blocks recompute, in place. Raises SpecError if the model has no blocks."""
    if spec.mode == "none":
        return
    repeated = _require_blocks(model, pattern, "recomputed", "train.recompute")
    # As torchtitan counts: with every 2, the second, the fourth, ...
    chosen = repeated[spec.every - 1 :: spec.every] if spec.mode == "every" else repeated
    for block in chosen:
        _recompute_block(block, selective=spec.mode == "selective")


def _recompute_block(block: nn.Module, *, selective: bool) -> None:
    original = _without_its_block(block)

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if not block.training or not torch.is_grad_enabled():
            return original(*arguments, **keywords)
        if selective:
            return checkpoint(original, *arguments, use_reentrant=False, context_fn=_selective_contexts, **keywords)
        return checkpoint(original, *arguments, use_reentrant=False, **keywords)

    block.forward = forward


def _without_its_block(block: nn.Module) -> Callable[..., Any]:
    # Before torch 2.13 compiled code of a method asks whether it is this very block's
    # (torch/_dynamo/variables/builder.py), and one code would not do for all blocks.
    if not inspect.ismethod(block.forward):
        return block.forward
    function = block.forward.__func__

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return function(block, *arguments, **keywords)

    return forward


def _selective_contexts() -> Any:
    matmuls: Counter[bool] = Counter()
    return create_selective_checkpoint_contexts(partial(_keep_attention_and_every_second_matmul, matmuls))


def _keep_attention_and_every_second_matmul(
    matmuls: Counter[bool], context: Any, op: Any, *_arguments: Any, **_keywords: Any
) -> CheckpointPolicy:
    if op not in _SAVED:
        return CheckpointPolicy.PREFER_RECOMPUTE
    if op in _MATMULS:
        matmuls[context.is_recompute] += 1
        if matmuls[context.is_recompute] % 2 == 0:
            return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE


def apply_offload(model: nn.Module, *, wanted: bool, pattern: str = "") -> None:
    """Makes the blocks of the model offload what autograd saves to the host, in place. Raises SpecError if it has no
    blocks."""
    if wanted:
        for block in _require_blocks(model, pattern, "offloaded", "train.activation_offload"):
            _offload_block(block)


def _offload_block(block: nn.Module) -> None:
    original = block.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*arguments, **keywords)
        with save_on_cpu(pin_memory=torch.cuda.is_available(), device_type="cuda"):
            return original(*arguments, **keywords)

    block.forward = forward


_Function = TypeVar("_Function", bound=Callable[..., Any])


def compile_model(model: nn.Module, spec: schema.Compile | None, pattern: str = "") -> None:
    """Compiles the forward of the model or of each of its blocks, in place. Raises SpecError for blocks that are not
    found."""
    if spec is None:
        return
    compiled: list[nn.Module] = []
    if "model" in spec.scope:
        compiled = [model]
    elif "blocks" in spec.scope:
        compiled = _require_blocks(model, pattern, "compiled", "train.compile.scope", other=", or compile the model")
    for module in compiled:
        module.forward = _compile(module.forward, spec)


def compile_loss(loss: _Function, spec: schema.Compile | None) -> _Function:
    return _compile(loss, spec) if spec is not None and "loss" in spec.scope else loss


def compile_optimizer(optimizer: torch.optim.Optimizer, spec: schema.Compile | None) -> None:
    """Compiles the optimizer's step, in place, where the job says so."""
    if spec is not None and "optimizer" in spec.scope:
        optimizer.step = _compile(optimizer.step, spec)  # type: ignore[method-assign]


def fewest_iterations(spec: schema.Compile | None) -> int:
    """After how many a compiled step does what it goes on doing: CUDA graphs are warmed up, captured, captured again
    where what they read came to lie elsewhere, and then replayed."""
    return 4 if spec is not None and spec.mode in ("reduce-overhead", "max-autotune") else 0


def forget_compiled(spec: schema.Compile | None) -> None:
    """A step that compiles begins as in a fresh process: with nothing compiled."""
    if spec is not None:
        torch.compiler.reset()


def require_graphs(spec: schema.Compile | None) -> None:
    """Raises TraceError where the job asks for a compiled step and nothing was compiled: a plan is never that of the
    eager step instead."""
    if spec is not None and not graphs_so_far()[0]:
        raise TraceError(
            f"torch.compile captured nothing of the step ({', '.join(spec.scope)})",
            allowed="a step of which Dynamo captures graphs",
            remedy="delete it to plan the eager step",
            place="train.compile",
        )


def graphs_so_far() -> tuple[int, int]:
    """How many graphs this process has compiled, and how often it began to capture CUDA graphs of them: where one was
    in between, there is no repetition."""
    if "torch._dynamo.utils" not in sys.modules:
        return 0, 0
    graphs = int(sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"])
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return graphs, 0
    managers = [container.tree_manager for container in trees.get_obj(trees.local, "tree_manager_containers").values()]
    return graphs, sum(manager.debug_fail_counter for manager in managers if manager is not None)


def _compile(function: _Function, spec: schema.Compile) -> _Function:
    mode = None if spec.mode == "default" else spec.mode
    arguments = check_arguments(torch.compile, spec.arguments, "train.compile", taken=("model", "mode"))
    compiled: Any = torch.compile(function, mode=mode, **{"backend": spec.backend, **arguments})
    return compiled  # type: ignore[no-any-return]
