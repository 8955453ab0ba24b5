"""The Python code that Inductor writes around kernels, as it is written for the paper GPU.

It allocates and frees as Inductor's own does; beside that it says of which module and operator what follows is.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import IndentedBuffer, cache_on_self
from torch._inductor.virtualized import V
from torch.utils._triton import has_triton_package

from planner.paper.compiled import assumptions, graph_origins
from planner.upstream import versions


class PaperWrapper(PythonWrapperCodegen):
    """Inductor's own wrapper, with kernels that are not launched and allocations that are told."""

    allocator = "empty_strided_cuda"
    compiler = "PaperCompile"

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
        self.imports.writeline(f"from planner.paper.compiled.generated import Origins, {self.compiler}")
        # The last of the header: what Inductor's own defines stands before.
        self.header.writeline(f"async_compile = {self.compiler}()")

    @cache_on_self
    def write_triton_header_once(self) -> None:
        """Code of users' kernels needs Triton's names; Inductor's own does not."""
        if has_triton_package():
            self.imports.splice("import triton\nimport triton.language as tl")
        if not versions.since(2, 7):  # whose code computes the grid of a launch itself
            names = "grid = split_scan_grid = grid_combo_kernels = cooperative_reduction_grid"
            self.imports.writeline(f"{names} = lambda *_sizes, **_options: None")
        self.imports.writeline(V.graph.device_ops.import_get_raw_stream_as("get_raw_stream"))

    def enter_context(self, ctx: Any) -> None:
        super().enter_context(ctx)  # type: ignore[no-untyped-call]
        self.writeline(f"enter_origin({self.number_of(ctx)})")  # type: ignore[no-untyped-call]

    def number_of(self, node: Any) -> int:
        """Of the module and operator of a node, among those of the code that is written."""
        return self._origins.setdefault(graph_origins.of_node(node), len(self._origins))

    def generate_end(self, result: IndentedBuffer) -> None:
        super().generate_end(result)
        result.splice(
            f"""
            origins = Origins({list(self._origins)!r}, {assumptions.of_this_compilation()!r})
            enter_origin, {self.allocator} = origins.enter, origins.empty_strided
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
        self.writeline(f"enter_origin({outermost.number_of(ctx)})")  # type: ignore[no-untyped-call]


class PaperWrapperForCpu(PaperWrapper):
    """The same for what is compiled for a CPU."""

    allocator = "empty_strided_cpu"
    compiler = "PaperCompileForCpu"
