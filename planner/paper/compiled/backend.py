"""How Inductor writes code for the paper GPU, and which module and operator a node of a graph is of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.codegen import common
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import IndentedBuffer

from planner.paper.compiled import padded_products, patches


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
                              {padded_products.current_compilation()!r})
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
