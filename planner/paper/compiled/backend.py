"""The paper GPU as Dynamo and Inductor ask for it: its device interface, code generation and origins of nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._dynamo import device_interface
from torch._dynamo.device_interface import CudaInterface, DeviceInterface
from torch._dynamo.variables import torch as folded
from torch._inductor.codegen import common, cpu_device_op_overrides  # noqa: F401 - torch asks for it where none is there
from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import IndentedBuffer, cache_on_self
from torch._inductor.virtualized import V

from planner.paper.compiled import generated, padded_products, patches
from planner.upstream import torch_releases


def make_interface() -> type[DeviceInterface]:
    """What `torch.cuda` answers now, which CudaInterface of torch has taken when it was imported."""

    class Worker:
        """As a process that compiles kernels would ask."""

        set_device = staticmethod(lambda _device: None)
        current_device = staticmethod(lambda: 0)
        get_device_properties = staticmethod(lambda _device=None: torch.cuda.get_device_properties(0))

    answers: dict[str, Any] = {
        "Worker": Worker,
        "device": torch.cuda.device,
        "Event": torch.cuda.Event,
        "Stream": torch.cuda.Stream,
        "get_raw_stream": staticmethod(generated.get_raw_stream),
        "exchange_device": staticmethod(torch.cuda._exchange_device),
        "maybe_exchange_device": staticmethod(torch.cuda._maybe_exchange_device),
        # Kernels are written for Triton and never run: the package is not needed.
        "raise_if_triton_unavailable": staticmethod(lambda _device=None: None),
    }
    same = (
        "current_device", "set_device", "device_count", "stream", "current_stream", "set_stream", "synchronize",
        "get_device_properties", "memory_allocated", "is_bf16_supported",
    )  # fmt: skip
    answers |= {name: staticmethod(getattr(torch.cuda, name)) for name in same}
    return type("PaperInterface", (CudaInterface,), answers)


class PaperOps(CUDADeviceOpOverrides):
    """CUDA's part of generated code, where nothing has a stream of the driver."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from planner.paper.compiled.generated import get_raw_stream as {name}"


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

    @cache_on_self
    def write_triton_header_once(self) -> None:
        """Code of users' kernels needs Triton's names."""
        self.imports.splice("import triton\nimport triton.language as tl")
        if not torch_releases.since(2, 7):  # whose code computes the grid of a launch itself
            names = "grid = split_scan_grid = grid_combo_kernels = cooperative_reduction_grid"
            self.imports.writeline(f"{names} = lambda *_sizes, **_options: None")
        self.imports.writeline(V.graph.device_ops.import_get_raw_stream_as("get_raw_stream"))

    def enter_context(self, ctx: Any) -> None:
        super().enter_context(ctx)  # type: ignore[no-untyped-call]
        self.writeline(f"enter_origin({self.number_of(ctx)})")  # type: ignore[no-untyped-call]

    def number_of(self, node: Any) -> int:
        """Of the module and operator of a node, among those of the code that is written."""
        return self._origins.setdefault(of_node(node), len(self._origins))

    def generate_end(self, result: IndentedBuffer) -> None:
        super().generate_end(result)
        result.splice(
            f"""
            origins = Origins({list(self._origins)!r}, {patches.of_this_compilation()!r},
                              {padded_products.of_this_compilation()!r})
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
        self.writeline(f"enter_origin({outermost.number_of(ctx)})")  # type: ignore[no-untyped-call]


@contextmanager
def registered() -> Iterator[None]:
    """Inside, a GPU is the paper GPU, and code is written for it; then all is as before."""
    common.init_backend_registration()
    device_interface.get_interface_for_device("cuda")
    answered_while_compiling: tuple[Any, ...] = (
        folded.constant_fold_functions, folded.constant_fold_functions_need_guards,
    )  # fmt: skip
    registries: tuple[Any, ...] = (
        device_interface.device_interfaces, common.device_codegens, common.device_op_overrides_dict,
        *answered_while_compiling,
    )  # fmt: skip
    with ExitStack() as stack:
        for registry in registries:
            stack.callback(_restore, registry, registry.copy())
        for functions in answered_while_compiling:
            # Dynamo has listed the functions that it found when it was loaded: those that torch has now by these names.
            modules = ((getattr(function, "__module__", None), function) for function in functions)
            now = [getattr(sys.modules[name], function.__name__, function) for name, function in modules
                   if name in sys.modules]  # fmt: skip
            functions.update(dict.fromkeys(now))
        common.register_backend_for_device("cuda", common.device_codegens["cuda"].scheduling, PaperWrapper)
        common.register_device_op_overrides("cuda", PaperOps())
        interface = make_interface()
        for name in ("cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
            device_interface.register_interface_for_device(name, interface)
        yield


def _restore(registry: Any, content: Any) -> None:
    registry.clear()
    registry.update(content)


_ROOT = re.compile(r"L\['\w+'\]")
"""The module that is compiled: an argument of its forward."""
_PART = re.compile(r"\._modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]|\.(\w+)")

_NO_MODULES = ("_modules", "_orig_mod", "__self__", "__closure__", "cell_contents")
"""Parts of a path in which Dynamo says how it came there: a method's module, a variable around a function."""


def of_node(node: Any) -> tuple[str, str]:
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
