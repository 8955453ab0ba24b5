"""Compiles equal parts of one graph once: DDP splits a graph at its buckets, and those of equal layers are equal.

A part is compiled as torch would compile it; one that equals it, in what it computes and in what it is given, runs the
same code. Whatever is not known to be equal is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext

_SAID_OF_NODES = ("recompute", "ac_graph_id", "custom", "partitioner_tag")
"""What tells the partitioner of forward and backward about a node (torch 2.13, torch/_functorch/partitioners.py)."""
_OF_WHOLE_GRAPH = ("meta", "_param_name_to_source")
_BY_VALUE = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _UnknownError(Exception):
    """Whether another part is equal to this one cannot be said."""


@dataclass(frozen=True)
class _Part:
    compiled: Any
    metadata: Any
    """What AOTAutograd found out about its forward."""


def compile_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """`SubmodCompiler.compile_submod` (torch 2.13, torch/_dynamo/backends/distributed.py) for parts that differ."""
    from torch._dynamo.utils import counters

    def compile_submod(self: Any, input_mod: fx.GraphModule, args: Sequence[Any], kwargs: Any) -> Any:
        known: dict[Hashable, _Part] = self.__dict__.setdefault("_parts_by_content", {})
        context, content = TracingContext.try_get(), _content(self.compiler, input_mod, args)
        if context is None or content is None:
            return real(self, input_mod, args, kwargs)
        if content not in known:
            compiled = real(self, input_mod, args, kwargs)
            known[content] = _Part(compiled, context.fw_metadata)
            return compiled
        part = known[content]
        context.fw_metadata = part.metadata
        _forget_place(context, part)
        counters["aot_autograd"]["total"] += 1  # by which the caller tells that results have to be made up
        return part.compiled

    return compile_submod


def results_again(real: Callable[..., Any]) -> Callable[..., Any]:
    """`FakifiedOutWrapper.post_compile` (torch 2.13, torch/_functorch/_aot_autograd/runtime_wrappers.py): its function
    returns tensors without memory at its first call, from which the next part is compiled. Here that is so for the
    first call of each part that runs the function."""

    def post_compile(self: Any, compiled_fn: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        once = real(self, compiled_fn, *arguments, **options)
        if once is compiled_fn:
            return compiled_fn
        results: list[Any] = []

        @wraps(compiled_fn)  # as torch does: how it is called stands among its attributes, before torch 2.13
        def call(runtime_args: Any) -> Any:
            context = TracingContext.try_get()
            if context is None or not context.fakify_first_call:
                return compiled_fn(runtime_args)
            if not results:
                results.extend(once(runtime_args))
                return list(results)
            return _others(results)

        return call

    return post_compile


def copied_without_sources(real: Callable[..., Any]) -> Callable[..., Any]:
    """`deepcopy_to_fake_tensor` (torch 2.13, torch/_dynamo/utils.py), which is asked for a copy of each part to run,
    and copies with it what Dynamo wrote down about the whole graph."""

    def copied(obj: Any, fake_mode: Any) -> Any:
        left_out = {name: obj.__dict__.pop(name) for name in _OF_WHOLE_GRAPH if name in obj.__dict__}
        try:
            return real(obj, fake_mode)
        finally:
            obj.__dict__.update(left_out)

    return copied


def _forget_place(context: TracingContext, part: _Part) -> None:
    """Backwards are compiled when they run, from the last part on, and each takes the last metadata in a list that was
    not taken: what parts share stands there where it is met first from the end."""
    places: Any = getattr(context, "ddp_optimizer_ctx", None)
    if places is None:
        return
    places.metadata_per_bucket = [each for each in places.metadata_per_bucket if each is not part.metadata]
    places.curr_bucket = len(places.metadata_per_bucket) - 1


def _others(results: Sequence[Any]) -> list[Any]:
    """Tensors as these, with memory of their own, which they share as these do."""
    whole: dict[int, Tensor] = {}

    def other(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        elements = each.untyped_storage().nbytes() // each.element_size()
        place = each.untyped_storage()._cdata
        if place not in whole:
            whole[place] = each.new_empty(elements)
        return whole[place].as_strided(each.shape, each.stride(), each.storage_offset())

    return [other(each) for each in results]


def _content(compiler: Any, module: fx.GraphModule, inputs: Sequence[Any]) -> Hashable | None:
    """All that decides what is compiled; None where that is not known."""
    backend = getattr(compiler, "_torchdynamo_orig_backend", compiler)
    if not isinstance(backend, torch._TorchCompileInductorWrapper) or _captures(backend):
        return None
    numbers = {node: number for number, node in enumerate(module.graph.nodes)}
    try:
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            tuple(_node(node, numbers) for node in module.graph.nodes),
            _inputs(inputs),
        )
    except _UnknownError:
        return None


def _captures(backend: Any) -> bool:
    """A CUDA graph is captured for each part, at the addresses of its parameters."""
    return bool(backend.config.get("triton.cudagraphs", torch._inductor.config.triton.cudagraphs))


def _node(node: fx.Node, numbers: dict[fx.Node, int]) -> Hashable:
    if node.op in ("get_attr", "call_module"):
        raise _UnknownError
    said = tuple(repr(node.meta.get(name)) for name in _SAID_OF_NODES)
    if node.op == "placeholder":
        source = getattr(node, "_dynamo_source", None)
        kept = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        return node.op, said, source is None, kept
    return node.op, node.target, said, _argument(node.args, numbers), _argument(node.kwargs, numbers)


def _argument(given: Any, numbers: dict[fx.Node, int]) -> Hashable:
    if isinstance(given, fx.Node):
        return numbers[given], "node"
    if isinstance(given, (tuple, list)):
        return type(given).__name__, *(_argument(each, numbers) for each in given)
    if isinstance(given, dict):
        return tuple((name, _argument(each, numbers)) for name, each in given.items())
    if isinstance(given, slice):
        return "slice", *(_argument(each, numbers) for each in (given.start, given.stop, given.step))
    if type(given) in _BY_VALUE:
        return type(given).__name__, repr(given)
    raise _UnknownError


def _inputs(inputs: Sequence[Any]) -> Hashable:
    """Their forms, and which of them share memory."""
    places: dict[int, int] = {}
    found: list[Hashable] = []
    for each in inputs:
        if not isinstance(each, Tensor):
            found.append(_argument(each, {}))
            continue
        if each.layout is not torch.strided or any(type(size) is not int for size in (*each.shape, *each.stride())):
            raise _UnknownError
        place = places.setdefault(each.untyped_storage()._cdata, len(places))
        form = tuple(each.shape), each.stride(), each.storage_offset(), each.untyped_storage().nbytes()
        kind = type(each), isinstance(each, torch.nn.Parameter), each.dtype, each.device
        found.append((*form, *kind, each.requires_grad, each.is_leaf, each.is_conj(), each.is_neg(), place))
    return tuple(found)
