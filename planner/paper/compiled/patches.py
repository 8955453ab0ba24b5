"""What replaces functions of Dynamo and Inductor: equal parts compiled once, no timing, no loading of kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import CompileContext, TracingContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_NOTES_OF_NODES = ("recompute", "ac_graph_id", "custom", "partitioner_tag")
"""What tells the partitioner of forward and backward about a node (torch 2.13, torch/_functorch/partitioners.py)."""
_OF_WHOLE_GRAPH = ("meta", "_param_name_to_source")
_BY_VALUE = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _UnknownError(Exception):
    """Whether another part is equal to this one cannot be said."""


def compile_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """`SubmodCompiler.compile_submod` (torch 2.13, torch/_dynamo/backends/distributed.py) for parts that differ."""
    from torch._dynamo.utils import counters

    def compile_submod(self: Any, input_mod: fx.GraphModule, args: Sequence[Any], kwargs: Any) -> Any:
        known: dict[Hashable, tuple[Any, Any]] = self.__dict__.setdefault("_parts_by_content", {})
        context, content = TracingContext.try_get(), _content(self.compiler, input_mod, args)
        if context is None or content is None:
            return real(self, input_mod, args, kwargs)
        if content not in known:
            compiled = real(self, input_mod, args, kwargs)
            # With what AOTAutograd has said of its forward.
            known[content] = compiled, context.fw_metadata
            return compiled
        compiled, context.fw_metadata = known[content]
        # Backwards are compiled when they run, from the last part on, and each takes the last metadata in a list that
        # was not taken: what parts share stands there where it is met first from the end.
        places: Any = getattr(context, "ddp_optimizer_ctx", None)
        if places is not None:
            others = [metadata for metadata in places.metadata_per_bucket if metadata is not context.fw_metadata]
            places.metadata_per_bucket, places.curr_bucket = others, len(others) - 1
        counters["aot_autograd"]["total"] += 1  # by which the caller tells that results have to be made up
        return compiled

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

        @wraps(compiled_fn)  # which may say that it takes all arguments in one list
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


def _others(results: Sequence[Any]) -> list[Any]:
    """Tensors as these, with memory of their own, which they share as these do."""
    whole: dict[int, Tensor] = {}

    def other(result: Any) -> Any:
        if not isinstance(result, Tensor):
            return result
        storage = result.untyped_storage()
        if storage._cdata not in whole:
            whole[storage._cdata] = result.new_empty(storage.nbytes() // result.element_size())
        return whole[storage._cdata].as_strided(result.shape, result.stride(), result.storage_offset())

    return [other(result) for result in results]


def _content(compiler: Any, module: fx.GraphModule, inputs: Sequence[Any]) -> Hashable | None:
    """All that decides what is compiled; None where that is not known."""
    backend = getattr(compiler, "_torchdynamo_orig_backend", compiler)
    if not isinstance(backend, torch._TorchCompileInductorWrapper):
        return None
    if backend.config.get("triton.cudagraphs", torch._inductor.config.triton.cudagraphs):
        return None  # a CUDA graph is captured for each part, at the addresses of its parameters
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


def _node(node: fx.Node, numbers: dict[fx.Node, int]) -> Hashable:
    if node.op in ("get_attr", "call_module"):
        raise _UnknownError
    notes = tuple(repr(node.meta.get(name)) for name in _NOTES_OF_NODES)
    if node.op == "placeholder":
        source = getattr(node, "_dynamo_source", None)
        kept = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        return node.op, notes, source is None, kept
    return node.op, node.target, notes, _argument(node.args, numbers), _argument(node.kwargs, numbers)


def _argument(given: Any, numbers: dict[fx.Node, int]) -> Hashable:
    if isinstance(given, fx.Node):
        return numbers[given], "node"
    if isinstance(given, (tuple, list)):
        return type(given).__name__, *(_argument(part, numbers) for part in given)
    if isinstance(given, dict):
        return tuple((name, _argument(value, numbers)) for name, value in given.items())
    if isinstance(given, slice):
        return "slice", *(_argument(bound, numbers) for bound in (given.start, given.stop, given.step))
    if type(given) in _BY_VALUE:
        return type(given).__name__, repr(given)
    raise _UnknownError


def _inputs(inputs: Sequence[Any]) -> Hashable:
    places: dict[int, int] = {}
    forms: list[Hashable] = []
    for given in inputs:
        if not isinstance(given, Tensor):
            forms.append(_argument(given, {}))
            continue
        if given.layout is not torch.strided or any(type(size) is not int for size in (*given.shape, *given.stride())):
            raise _UnknownError
        storage = given.untyped_storage()
        place = places.setdefault(storage._cdata, len(places))
        form = tuple(given.shape), given.stride(), given.storage_offset(), storage.nbytes()
        kind = type(given), isinstance(given, torch.nn.Parameter), given.dtype, given.device
        forms.append((*form, *kind, given.requires_grad, given.is_leaf, given.is_conj(), given.is_neg(), place))
    return tuple(forms)


class _OnHost(TorchDispatchMode):
    """Inside, what would be made on a GPU is made on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*tree_map(_host_for_gpu, args), **tree_map(_host_for_gpu, kwargs or {}))


def _host_for_gpu(argument: Any) -> Any:
    is_gpu = isinstance(argument, torch.device) and argument.type == "cuda"
    return torch.device("cpu") if is_gpu else argument


def on_host(real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`UniformValueConstantFolder._deduce_value` (torch 2.13, torch/_inductor/fx_passes/joint_graph.py) on the host."""

    def deduce(self: Any, node: Any) -> Any:
        with _OnHost():  # type: ignore[no-untyped-call]
            return real(self, node)

    return deduce


ASSUMED: set[str] = set()
"""Sentences, for the report; since the last `forget`."""
_by_compilation: defaultdict[object, set[str]] = defaultdict(set)


def assume(sentence: str) -> None:
    """Said now, and again whenever the code that is being compiled is run: it may come from a cache next time."""
    ASSUMED.add(sentence)
    _by_compilation[CompileContext.current_compile_id()].add(sentence)


def current_compilation() -> list[str]:
    """What was assumed for the code that is written now."""
    return sorted(_by_compilation[CompileContext.current_compile_id()])


def forget() -> None:
    ASSUMED.clear()
    _by_compilation.clear()


_CHOSEN = "of several kernels for one operation ({name}) the library's is the fastest, or else Inductor's first"


def choose_kernel(real: Callable[..., Any]) -> Callable[..., Any]:
    """`AlgorithmSelectorCache.__call__` (torch 2.13, torch/_inductor/select_algorithm.py) without timing: of one kernel
    it is chosen, as under Inductor's setting `deterministic`, which came with torch 2.10."""

    from torch._inductor.select_algorithm import ExternKernelCaller

    def choose(self: Any, name: str, choices: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        known = [choice for choice in choices if choice is not None]
        if len(known) > 1:
            assume(_CHOSEN.format(name=name))
        of_a_library = [choice for choice in known if isinstance(choice, ExternKernelCaller)]
        return real(self, name, (of_a_library or known)[:1], *arguments, **options)

    return choose
