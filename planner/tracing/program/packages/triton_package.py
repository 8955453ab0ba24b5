"""Triton on paper: its kernels are launched as nothing, but for what they make of whole numbers that are known.

Those run in Triton's own interpreter on the host: a mixture of experts counts its tokens so, and sizes buffers by that.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from planner import upstream
from planner.errors import TraceError
from planner.paper import library
from planner.paper.compiled import triton_kernels
from planner.paper.outside.operators import TRITON_BUFFER_BYTES, benchmark
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.cuda import forget_values
from planner.units import MIB

# What a kernel writes to was allocated before its launch. A kernel with several configurations is not timed: the first
# one stands for the fastest, and the buffer with which the timing empties the GPU's cache is taken and given back as
# Triton 3.9 does (triton/testing.py do_bench, backends/nvidia/driver.py get_empty_cache_for_benchmark).
_FIRST = (
    "of several configurations of a Triton kernel the first is the fastest; the 256 MiB of their timing are counted"
)


class Launched:
    """A compiled kernel that is not there."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            f"the program asks a compiled Triton kernel for {name}, and nothing is compiled",
            allowed="launches of kernels",
            remedy="choose sizes without asking the compiled kernel",
        )


class Launches:
    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._scratch = False

    def launch(self, kernel: Any, *arguments: Any, **named: Any) -> Launched:
        """`JITFunction.run`: what it writes is not known afterwards, except whole numbers made of known ones."""
        if not follow_launch(kernel, arguments, named):
            given = {**dict(zip(kernel.arg_names, arguments, strict=False)), **named}
            written = find_written(kernel.fn)
            forget_values(value for name, value in given.items() if name in written)
        if self._scratch:
            library.load().paper_workspace_is_unknown(b"triton::scratch")
        return Launched()

    def timed(
        self, call: Callable[[], Any], *_settings: Any, quantiles: Sequence[float] | None = None, **_: Any
    ) -> Any:
        """`triton.testing.do_bench` and its kin: one call, the buffer, and the same time for everybody."""
        self._assumptions.add(About.DEVICE, _FIRST)
        time = benchmark(call, TRITON_BUFFER_BYTES, "triton::do_bench")
        return [time] * len(quantiles) if quantiles else time

    def set_allocator(self, *_arguments: Any) -> None:
        """`triton.set_allocator`: from here on kernels take scratch memory whose size only the compiled ones know."""
        self._scratch = True

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Triton's own classes launch nothing, inside; Triton has been imported."""

        def run(kernel: Any, *arguments: Any, **named: Any) -> Launched:
            return self.launch(kernel, *arguments, **named)

        replaced = {
            "triton.testing:do_bench": self.timed,
            "triton.testing:do_bench_cudagraph": self.timed,
            "triton:set_allocator": self.set_allocator,
            "triton.runtime.jit:JITFunction.run": run,
        }
        launches = upstream.patch_targets("program launches triton", replaced=replaced)
        with triton_kernels.driver_on_paper(self.timed), launches:
            yield


_MOST_BLOCKS, _MOST_NUMBERS = 1024, 1 << 20
_MOST_CALLS = 20
"""Of functions of Triton's language by a block: a sort has hundreds. Larger launches take seconds."""
_LEFT_BEHIND = 0, 1
"""What memory may hold that nobody has written to."""

_ROOM_BYTES = MIB
"""Kernels without a mask reach beyond their tensors: on a GPU into what is left of a block."""

_results: dict[tuple[Any, ...], dict[str, torch.Tensor]] = {}
_MOST_RESULTS = 64
"""That are kept: a step launches a kernel again with the same numbers."""


def follow_launch(kernel: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether what the kernel wrote is known afterwards: all of its tensors hold whole numbers, and either these are
    known or what the kernel writes does not depend on them."""
    given = {**dict(zip(kernel.arg_names, arguments, strict=False)), **named}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor) and value.is_cuda}
    if not tensors or not _can_interpret():
        return False
    if any(isinstance(given.get(name), tuple | list) for name in kernel.arg_names):
        return False
    if any(tensor.is_floating_point() or tensor.numel() > _MOST_NUMBERS for tensor in tensors.values()):
        return False
    grid = given["grid"](given) if callable(given["grid"]) else given["grid"]
    known = {name: torch.ops.paper.known_value(tensor) for name, tensor in tensors.items()}
    unknown = [name for name, value in known.items() if value is None]
    if math.prod(grid) > _MOST_BLOCKS or len(unknown) == len(known):
        return False
    results = []
    for left in _LEFT_BEHIND if unknown else _LEFT_BEHIND[:1]:
        hosts = {
            name: _with_room(torch.tensor(left).expand(tensor.shape) if known[name] is None else known[name], tensor)
            for name, tensor in tensors.items()
        }
        key = kernel.fn, *grid, *((name, _make_key(hosts.get(name, given.get(name)))) for name in kernel.arg_names)
        if key not in _results:
            done = _interpret(kernel, grid, {name: hosts.get(name, value) for name, value in given.items()})
            if len(_results) >= _MOST_RESULTS:
                _results.clear()
            _results[key] = hosts if done else {}
        if not _results[key]:
            return False
        results.append(_results[key])
    for name, tensor in tensors.items():
        before, after = known[name], results[0][name]
        if not torch.equal(after, results[-1][name]):
            torch.ops.paper.forget_value(tensor)
        elif before is None:
            torch.ops.paper.remember_value(tensor, after)
        else:
            before.copy_(after)  # a view of what is kept
    return True


def _with_room(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """These values, laid out as `like`, with room behind them."""
    strides = like.stride() if torch.ops.aten.is_non_overlapping_and_dense(like) else torch.empty(like.shape).stride()
    room = torch.zeros(like.numel() + _ROOM_BYTES // like.element_size(), dtype=like.dtype)
    return room.as_strided(like.shape, strides).copy_(values)


@functools.cache
def find_written(function: Callable[..., Any]) -> frozenset[str]:
    """Parameters of a kernel through which it may write: those of which a place is made that is stored to, and those
    that it hands to functions of its own."""
    parameters = frozenset(inspect.signature(function).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return parameters
    written: set[str] = set()
    made_of: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            written.update(_written_names(node))
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in _names(target):
                    made_of.setdefault(name, set()).update(_names(node.value))
    waiting = list(written)
    while waiting:
        new = made_of.get(waiting.pop(), set()) - written
        written |= new
        waiting += new
    return parameters & written


def _written_names(call: ast.Call) -> Iterator[str]:
    if isinstance(call.func, ast.Name):
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            yield from _names(argument)
    elif isinstance(call.func, ast.Attribute) and (call.func.attr == "store" or call.func.attr.startswith("atomic_")):
        yield from _names(call.func.value)  # of a descriptor
        for argument in call.args[:1]:
            yield from _names(argument)


def _names(node: ast.AST) -> Iterator[str]:
    """Those of which a place may be made: not of what was loaded from one."""
    if isinstance(node, ast.Name):
        yield node.id
    elif not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load"):
        for child in ast.iter_child_nodes(node):
            yield from _names(child)


def _make_key(value: Any) -> Any:
    return (value.shape, value.stride(), value.numpy().tobytes()) if isinstance(value, torch.Tensor) else value


def _can_interpret() -> bool:
    """Since 3.6 the interpreter leaves Triton's language as it was."""
    try:
        return hasattr(importlib.import_module("triton.runtime.interpreter"), "_LangPatchScope")
    except (ImportError, TraceError):  # a stand-in has none
        return False


_too_long: set[Any] = set()
"""Kernels that call too much."""


def _interpret(kernel: Any, grid: Sequence[int], given: Mapping[str, Any]) -> bool:
    """Runs the kernel on tensors of the host; false where the interpreter cannot, or would take long."""
    if kernel.fn in _too_long:
        return False
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    calls: Counter[tuple[int, ...]] = Counter()

    def call(called: Any, *arguments: Any, **named: Any) -> Any:
        """A function of kernels that a kernel calls."""
        block = interpreter.interpreter_builder.grid_idx
        calls[block] += 1
        if calls[block] > _MOST_CALLS:
            _too_long.add(kernel.fn)
            raise interpreter.InterpreterError("too many calls")
        return interpreter.InterpretedFunction(called.fn).rewrite()(*arguments, **named)

    def patch_tensor(real: Callable[..., None]) -> Callable[..., None]:
        """3.6 makes a bound of a loop of an array of one number, which NumPy refuses since 2.5; 3.7 does as here."""

        def patch(tensor: Any, scope: Any) -> None:
            real(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        return patch

    replaced = {"triton.runtime.jit:JITFunction.__call__": call}
    wrapped = {"triton.runtime.interpreter:_patch_lang_tensor": patch_tensor}
    arguments = {name: given[name] for name in kernel.arg_names if name in given}
    with upstream.patch_targets("program interprets triton", replaced=replaced, wrapped=wrapped):
        # The language as its own functions use it, which are called in kernels.
        scope = interpreter._patch_lang(importlib.import_module("triton.language.standard").zeros.fn)
        try:
            interpreter.InterpretedFunction(kernel.fn).run(grid=tuple(grid), warmup=False, **arguments)
        except interpreter.InterpreterError:
            return False
        finally:
            scope.restore()
    return True
