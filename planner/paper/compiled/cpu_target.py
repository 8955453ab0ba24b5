"""The target `cpu`: what is compiled is compiled for a CPU, to stand beside real runs of Inductor's C++ code.

On paper every tensor is on a CUDA device: a graph is led to the CPU when Dynamo hands it to Inductor, so that
AOTAutograd, the partitioner and Inductor decide as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

_CPU = torch.device("cpu")


def on_cpu(real: Callable[..., Any]) -> Callable[..., Any]:
    """`compile_fx` (torch 2.13, torch/_inductor/compile_fx.py) of the same program on a CPU."""

    def compile_fx(model_: Any, example_inputs_: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        program, held = _hand_in_attributes(model_)
        for module in program.modules():
            if isinstance(module, torch.fx.GraphModule):
                for node in module.graph.nodes:
                    node.args, node.kwargs = tree_map(_cpu_for_gpu, node.args), tree_map(_cpu_for_gpu, node.kwargs)
                module.recompile()
        compiled = real(program, [_as_on_cpu(given) for given in (*held, *example_inputs_)], *arguments, **options)
        return partial(compiled, *held) if held else compiled

    return compile_fx


def _hand_in_attributes(module: Any) -> tuple[Any, list[Tensor]]:
    """The program with tensors that it has as attributes (an optimizer's parameters) as its first inputs, and those.

    Dynamo goes on with the graph that it gave: another one is changed.
    """
    held = {
        str(node.target): value for node in module.graph.find_nodes(op="get_attr") if _is_on_gpu(value := _of(node))
    }
    if not held:
        return module, []
    graph = torch.fx.Graph()
    copies: dict[str, torch.fx.Node] = {}
    for name in held:
        copies[name] = graph.placeholder(f"attribute_{len(copies)}")
        # Where an input comes from matters to guards only, which are Dynamo's and are made already.
        copies[name]._dynamo_source = None
    same: dict[Any, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and str(node.target) in held:
            same[node] = copies[str(node.target)]
            continue
        same[node] = graph.node_copy(node, same.__getitem__)
        if node.op == "placeholder":
            same[node]._dynamo_source = node._dynamo_source
    program = torch.fx.GraphModule(module, graph)
    program._param_name_to_source = module._param_name_to_source
    return program, list(held.values())


def _of(node: torch.fx.Node) -> Any:
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cuda"


def _cpu_for_gpu(argument: Any) -> Any:
    if isinstance(argument, torch.device) and argument.type == "cuda":
        return _CPU
    if isinstance(argument, str) and argument.partition(":")[0] == "cuda":
        return "cpu"
    return argument


def _as_on_cpu(given: Any) -> Any:
    """A tensor of the same shape, strides and dtype without memory, and part of a graph if it is."""
    if not _is_on_gpu(given):
        return given
    context = TracingContext.get()
    assert context.fake_mode is not None  # Dynamo has it before it calls a backend
    known = given if isinstance(given, FakeTensor) else context.fake_mode.from_tensor(given)
    with context.fake_mode:
        moved = torch.empty_strided(known.shape, known.stride(), dtype=known.dtype, device=_CPU)
    if isinstance(given, torch.nn.Parameter):
        return torch.nn.Parameter(moved, requires_grad=given.requires_grad)
    return moved.requires_grad_(given.requires_grad)
