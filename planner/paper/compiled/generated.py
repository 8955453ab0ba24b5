"""Code that Inductor writes for the paper GPU, and what it calls: allocations, kernels that compute nothing, checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._inductor.config
from torch._inductor.codegen import common
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import IndentedBuffer
from torch._library.simple_registry import singleton

from planner.paper import work_records
from planner.paper.compiled import kernel_timing, patches
from planner.paper.compiled.patches import ASSUMED
from planner.paper.outside.operators import record_operator
from planner.paper.recorder import Recorder

with torch._inductor.config.patch(compile_threads=1):  # up to torch 2.8 it starts, where it is imported, processes
    from torch._inductor.async_compile import AsyncCompile


_recorder: Recorder | None = None
"""Hears of which module and operator an allocation is."""


def tell(recorder: Recorder | None) -> None:
    """From now on generated code tells this recorder; nobody with None."""
    global _recorder
    _recorder = recorder


class Origins:
    """The modules and operators of one generated function, and which of them is at work."""

    def __init__(
        self, origins: Sequence[tuple[str, str]], assumed: Sequence[str], timed: Sequence[kernel_timing.Product] = ()
    ) -> None:
        """`origins`: paths of modules, below the compiled one, with operators. `assumed`: what was when compiling.
        `timed`: products that a GPU would have been timed for meanwhile."""
        self._origins, self._operator = origins, ""
        self._assumed, self._timed = assumed, timed
        self._before: int | None = None

    def enter(self, number: int) -> None:
        """What follows is that of an origin, by its number."""
        path, self._operator = self._origins[number]
        if _recorder is not None:
            _recorder.return_to(self._before)
            _recorder.enter_below(path)

    def within(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The generated function, after which all is as before."""

        def run(arguments: Any) -> Any:
            ASSUMED.update(self._assumed)
            kernel_timing.take_timings(self._timed)
            outer, self._before = self._before, None if _recorder is None else _recorder.enter_below("")
            try:
                return call(arguments)
            finally:
                if _recorder is not None:
                    _recorder.return_to(self._before)
                self._before, self._operator = outer, ""

        return run

    def empty_strided(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """As `_empty_strided_cuda` (torch 2.13, torch/csrc/dynamo/guards.cpp), which builds for a CPU lack."""
        if _recorder is None or not self._operator:
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
        with record_operator(self._operator):
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def assert_size_stride(self, tensor: torch.Tensor, size: Any, stride: Any, operator: str = "") -> None:
        """As the function of this name that generated code calls (torch 2.13, torch/csrc/dynamo/guards.cpp), but for
        strides of a program's own operators: of earlier versions of torch the generated code did not check them. Up to
        torch 2.7 the code does not say whose results they are: those of the operator at work.

        Raises AssertionError as that one does.
        """
        try:
            named = (operator,) if operator else ()
            torch._C._dynamo.guards.assert_size_stride(tensor, size, stride, *named)
        except AssertionError:
            name = operator.removeprefix("torch.ops.").removesuffix(".default").replace(".", "::", 1) or self._operator
            # Whether a function in Python says what the operator returns (`torch.library.register_fake`).
            is_programs_own = bool(name) and singleton.find(name).fake_impl.kernel is not None
            if not _goes_on or tuple(tensor.size()) != tuple(size) or not is_programs_own:
                raise
            ASSUMED.add(_OTHER_STRIDES.format(name=name))


class _UnrunKernel:
    """A kernel: it writes to what was allocated for it, and its launch is only noted."""

    def __init__(self, name: str, source: str, untimed: Callable[..., None] | None = None) -> None:
        self._op, self._untimed = f"inductor::{name}", untimed
        signature = re.search(r"def \w+\(([^)]*)\)", source)
        self._names = [part.split(":")[0].strip() for part in signature[1].split(",")] if signature else []

    def run(self, *arguments: Any, **options: Any) -> None:
        """Of each buffer it reads or writes as many elements as it has to compute, or all."""
        if self._untimed is not None:
            untimed, self._untimed = self._untimed, None
            untimed(*arguments, **options)
        named = list(zip(self._names, arguments, strict=False))
        tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor)]
        numels = [value for name, value in named if name.endswith("numel") and isinstance(value, int)]
        most = math.prod(numels) if numels else None
        reads = [tensor for name, tensor in tensors if not name.startswith("out_ptr")]
        writes = [tensor for name, tensor in tensors if name.startswith(("out_ptr", "in_out_ptr"))]
        for tensor in writes:
            torch.ops.paper.forget_value(tensor)

        def size(tensor: torch.Tensor) -> int:
            return min(tensor.numel(), most or tensor.numel()) * tensor.element_size()

        work_records.note_kernel(
            self._op, reads, writes, read_bytes=sum(map(size, reads)), written_bytes=sum(map(size, writes))
        )

    __call__ = run


@cache
def make_kernel(name: str, source: str) -> _UnrunKernel:
    """A kernel of Triton's. Equal code in several graphs is one kernel, which is timed once, as Inductor's modules of
    kernels are (torch 2.13, torch/_inductor/codecache.py, PyCodeCache)."""
    return _UnrunKernel(name, source, kernel_timing.untimed_kernel(name, source))


class PaperCompile(AsyncCompile):
    """Compiles what runs on the host, and nothing for the device."""

    def triton(self, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:  # noqa: ARG002
        return make_kernel(kernel_name, source_code)


_OTHER_STRIDES = (
    "the operator {name} returns strides that its own register_fake does not say: torch 2.7 and later stop there, one "
    "before it (2.6, and nightlies of 2.7), which goes on, is taken to run the program"
)
_goes_on = False


@contextmanager
def other_strides(*, go_on: bool) -> Iterator[None]:
    """Inside, a program whose own operators return other strides than they say goes on, as under torch 2.6, or not."""
    global _goes_on
    before, _goes_on = _goes_on, go_on
    try:
        yield
    finally:
        _goes_on = before


# How Inductor writes code for the paper GPU, and which module and operator a node of a graph is of.
class PaperWrapper(PythonWrapperCodegen):
    """Inductor's own wrapper, with kernels that are not launched and allocations that are told."""

    def __init__(self) -> None:
        self._origins: dict[tuple[str, str], int] = {}
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def create(
        cls, is_subgraph: bool, subgraph_name: str | None, parent_wrapper: Any, *partition_signatures: Any
    ) -> PythonWrapperCodegen:
        if is_subgraph:
            assert subgraph_name is not None
            return PaperSubgraph(subgraph_name, parent_wrapper, *partition_signatures)  # which came with torch 2.7
        return cls()

    def write_header(self) -> None:
        super().write_header()
        self.imports.writeline("from planner.paper.compiled.generated import Origins, PaperCompile")
        # The last of the header: what Inductor's own defines stands before.
        self.header.writeline("async_compile = PaperCompile()")

    def enter_context(self, ctx: Any) -> None:
        super().enter_context(ctx)  # type: ignore[no-untyped-call]
        self.writeline(f"enter_origin({self.origin_number(ctx)})")  # type: ignore[no-untyped-call]

    def origin_number(self, node: Any) -> int:
        """Of the module and operator of a node, among those of the code that is written."""
        return self._origins.setdefault(node_origin(node), len(self._origins))

    def generate_end(self, result: IndentedBuffer) -> None:
        super().generate_end(result)
        result.splice(
            f"""
            origins = Origins({list(self._origins)!r}, {patches.current_compilation()!r},
                              {kernel_timing.untimed_products()!r})
            enter_origin, empty_strided_cuda = origins.enter, origins.empty_strided
            assert_size_stride = origins.assert_size_stride
            call = origins.within(call)
            """
        )


class PaperSubgraph(SubgraphPythonWrapperCodegen):
    """A function inside of that code, such as what one CUDA graph captures."""

    def enter_context(self, ctx: Any) -> None:
        super().enter_context(ctx)  # type: ignore[no-untyped-call]
        outermost = self.parent_wrapper
        while isinstance(outermost, PaperSubgraph):
            outermost = outermost.parent_wrapper
        assert isinstance(outermost, PaperWrapper)
        self.writeline(f"enter_origin({outermost.origin_number(ctx)})")  # type: ignore[no-untyped-call]


@contextmanager
def registered() -> Iterator[None]:
    """Inside, code for a GPU is written by `PaperWrapper`; then all is as before."""
    common.init_backend_registration()
    before = common.device_codegens["cuda"]
    common.register_backend_for_device("cuda", before.scheduling, PaperWrapper)
    try:
        yield
    finally:
        common.device_codegens["cuda"] = before


_ROOT = re.compile(r"L\['\w+'\]")
"""The module that is compiled: an argument of its forward."""
_PART = re.compile(r"\._modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]|\.(\w+)")

_NO_MODULES = ("_modules", "_orig_mod", "__self__", "__closure__", "cell_contents")
"""Parts of a path in which Dynamo says how it came there: a method's module, a variable around a function."""


def node_origin(node: Any) -> tuple[str, str]:
    """Path of the module, below the compiled one, and operator (`aten::mm`); empty where nothing is known.

    The module is the innermost of the stack; of what a backward does that of its forward.
    """
    original = node.meta.get("original_aten") or node.target
    name = getattr(original, "name", None)
    operator = str(name() if callable(name) else "").partition(".")[0]
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return _dotted(list(stack.values())[-1][0]) if stack else "", operator


def _dotted(path: str) -> str:
    """`layers.0.attention` for `L['self']._modules['layers'].0._modules['attention']` and its like."""
    root = _ROOT.match(path)
    names = ["".join(groups) for groups in _PART.findall(path, root.end())] if root else []
    return ".".join(name for name in names if name not in _NO_MODULES)
