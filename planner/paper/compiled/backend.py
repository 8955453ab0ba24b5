"""The paper GPU as Dynamo and Inductor ask for it: its device interface, code generation and origins of nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import device_interface, utils
from torch._dynamo.device_interface import CudaInterface, DeviceInterface
from torch._dynamo.variables import torch as folded
from torch._inductor.codegen import common
from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import IndentedBuffer, cache_on_self
from torch._inductor.virtualized import V
from torch.utils._triton import has_triton_package

from planner.paper.compiled import generated, patches
from planner.paper.torch_cuda import DeviceProperties
from planner.upstream import torch_releases


class _Worker:
    """As a process that compiles kernels would ask."""

    @staticmethod
    def set_device(_device: int) -> None: ...

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_device_properties(_device: Any = None) -> Any:
        return torch.cuda.get_device_properties(0)


def make_interface() -> type[DeviceInterface]:
    """What `torch.cuda` answers now, which CudaInterface of torch has taken when it was imported."""

    class PaperInterface(CudaInterface):
        device = torch.cuda.device
        Event = torch.cuda.Event
        Stream = torch.cuda.Stream
        Worker = _Worker  # type: ignore[assignment]
        current_device = staticmethod(torch.cuda.current_device)
        set_device = staticmethod(torch.cuda.set_device)
        device_count = staticmethod(torch.cuda.device_count)
        stream = staticmethod(torch.cuda.stream)
        current_stream = staticmethod(torch.cuda.current_stream)
        set_stream = staticmethod(torch.cuda.set_stream)
        synchronize = staticmethod(torch.cuda.synchronize)
        get_device_properties = staticmethod(torch.cuda.get_device_properties)
        get_raw_stream = staticmethod(generated.get_raw_stream)
        exchange_device = staticmethod(torch.cuda._exchange_device)
        maybe_exchange_device = staticmethod(torch.cuda._maybe_exchange_device)
        memory_allocated = staticmethod(torch.cuda.memory_allocated)
        is_bf16_supported = staticmethod(torch.cuda.is_bf16_supported)

        @staticmethod
        def raise_if_triton_unavailable(device: Any = None) -> None:
            """Kernels are written for Triton and never run: the package is not needed."""

    return PaperInterface


class PaperOps(CUDADeviceOpOverrides):
    """CUDA's part of generated code, where nothing has a stream of the driver."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from planner.paper.compiled.generated import get_raw_stream as {name}"


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
            origins = Origins({list(self._origins)!r}, {patches.of_this_compilation()!r})
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


@contextmanager
def registered(device: str) -> Iterator[None]:
    """Inside, a GPU is the paper GPU, and code is written for this device (`cuda`, or `cpu`); then all is as before."""
    common.init_backend_registration()
    common.get_device_op_overrides("cuda")
    device_interface.get_interface_for_device("cuda")
    answered_while_compiling: Any = folded.constant_fold_functions
    of_which_guarded: Any = folded.constant_fold_functions_need_guards
    with (
        _as_before(device_interface.device_interfaces),
        _as_before(common.device_codegens),
        _as_before(common.device_op_overrides_dict),
        _as_before(answered_while_compiling),
        _as_before(of_which_guarded),
        _as_before(utils.common_constant_types),
    ):
        # A program may compare or branch on a property of its GPU inside of what is compiled.
        utils.common_constant_types.add(DeviceProperties)
        for functions in (answered_while_compiling, of_which_guarded):
            functions.update(_in_their_places(functions))
        wrapper = PaperWrapperForCpu if device == "cpu" else PaperWrapper
        common.register_backend_for_device(device, common.device_codegens[device].scheduling, wrapper)
        common.register_device_op_overrides("cuda", PaperOps())
        interface = make_interface()
        for name in ("cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))):
            device_interface.register_interface_for_device(name, interface)
        yield


def _in_their_places(functions: Iterable[Any]) -> dict[Any, None]:
    """What torch has now by the names of these functions: Dynamo has listed those that it found when it was loaded."""
    modules = ((getattr(each, "__module__", None), each) for each in functions)
    return {getattr(sys.modules[name], each.__name__, each): None for name, each in modules if name in sys.modules}


@contextmanager
def _as_before(registry: dict[Any, Any] | set[Any]) -> Iterator[None]:
    """What is registered inside is gone at the end."""
    content: Any = registry.copy()
    try:
        yield
    finally:
        registry.clear()
        registry.update(content)


_ROOT = re.compile(r"L\['\w+'\]")
"""The module that is compiled: an argument of its forward."""
_PART = re.compile(r"\._modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]|\.(\w+)")

_NO_MODULES = ("_modules", "_orig_mod", "__self__", "__closure__", "cell_contents")
"""Parts of a path in which Dynamo says how it came there: a method's module, a variable around a function."""


def of_node(node: Any) -> tuple[str, str]:
    """Path of the module, below the compiled one, and operator (`aten::mm`); empty where nothing is known."""
    return _module_path(node.meta), _operator(node)


def _operator(node: Any) -> str:
    original = node.meta.get("original_aten") or node.target
    name = getattr(original, "name", None)
    found = name() if callable(name) else ""
    return str(found).partition(".")[0]


def _module_path(meta: dict[str, Any]) -> str:
    """The innermost module of the stack; that of the forward for what its backward does."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return dotted(path)


def dotted(path: str) -> str:
    """`layers.0.attention` for `L['self']._modules['layers'].0._modules['attention']` and its like."""
    root = _ROOT.match(path)
    names = ["".join(groups) for groups in _PART.findall(path, root.end())] if root else []
    return ".".join(name for name in names if name not in _NO_MODULES)
