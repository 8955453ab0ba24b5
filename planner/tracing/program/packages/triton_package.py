"""Triton on paper: kernels are launched as nothing; a package stands in for it where it is not installed."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from planner import upstream
from planner.errors import TraceError
from planner.paper.benchmarking import TRITON_BUFFER_BYTES, benchmark
from planner.paper.kernels import workspaces
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.cuda import forget_values
from planner.tracing.program.packages.triton_interpreter import find_written, follow_launch

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
    """Launches of one program, by Triton's own classes or by those of its stand-in."""

    def __init__(self, properties: Any, assumptions: Assumptions) -> None:
        self.driver = _driver(properties, self.timed)
        self._assumptions = assumptions
        self._scratch = False
        self.compiles = False
        """Whether the program compiles."""

    def launch(self, kernel: Any, *arguments: Any, **named: Any) -> Launched:
        """`JITFunction.run`: what it writes is not known afterwards, except whole numbers made of known ones."""
        if not follow_launch(kernel, arguments, named):
            given = {**dict(zip(kernel.arg_names, arguments, strict=False)), **named}
            written = find_written(kernel.fn)
            forget_values(value for name, value in given.items() if name in written)
        if self._scratch:
            workspaces.note_unknown_workspace("triton::scratch")
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

    def patched(self) -> Any:
        """Triton's own classes launch nothing, inside; Triton has been imported."""
        importlib.import_module("triton.runtime.driver").driver.set_active(self.driver)

        def run(kernel: Any, *arguments: Any, **named: Any) -> Launched:
            return self.launch(kernel, *arguments, **named)

        replaced = {
            "triton.testing:do_bench": self.timed,
            "triton.testing:do_bench_cudagraph": self.timed,
            "triton:set_allocator": self.set_allocator,
            "triton.runtime.jit:JITFunction.run": run,
        }
        return upstream.patch_targets("program launches triton", replaced=replaced)


def _driver(properties: Any, benchmarker: Callable[..., Any]) -> SimpleNamespace:
    """What Triton and programs ask of the active driver (triton/backends/nvidia/driver.py)."""
    capability = properties.major, properties.minor
    known = {
        "max_shared_mem": properties.shared_memory_per_block_optin,
        "max_num_regs": properties.regs_per_multiprocessor,
        "multiprocessor_count": properties.multi_processor_count,
        "warpSize": properties.warp_size,
    }

    def current_target() -> Any:
        values = {"backend": "cuda", "arch": capability[0] * 10 + capability[1], "warp_size": properties.warp_size}
        try:  # Triton's own class, where that is there
            return importlib.import_module("triton.backends.compiler").GPUTarget(**values)
        except (ImportError, TraceError):
            return SimpleNamespace(**values)

    return SimpleNamespace(
        utils=SimpleNamespace(
            get_device_properties=lambda _device=0: dict(known), set_printf_fifo_size=lambda _bytes: None
        ),
        get_current_target=current_target,
        get_current_device=lambda: int(torch.cuda.current_device()),
        set_current_device=lambda device: torch.cuda.set_device(device),
        get_current_stream=lambda _device=None: 0,
        get_active_torch_device=lambda: torch.device("cuda", torch.cuda.current_device()),
        get_device_interface=lambda: torch.cuda,
        get_benchmarker=lambda: benchmarker,
        get_device_capability=lambda: capability,
        get_empty_cache_for_benchmark=lambda: torch.empty(TRITON_BUFFER_BYTES // 4, dtype=torch.int32, device="cuda"),
        clear_cache=lambda cache: cache.zero_(),
        is_active=lambda: True,
    )


# Kernels are objects whose launch does nothing; their bodies are never read. Names are those of Triton 3.9. Programs
# that compile, or that ask a compiled kernel for something, need the package itself.
_INSTALL = "pip install triton here: it needs no GPU, and torch for CUDA brings it everywhere else"
_LANGUAGE = (
    "language", "language.core", "language.math", "language.standard", "language.extra", "language.extra.libdevice",
    "language.extra.cuda", "language.extra.cuda.libdevice",
)  # fmt: skip


class _Symbol:
    """Something of Triton's language, which only bodies of kernels use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Symbol(f"{self._name}.{name}")

    def __call__(self, *_arguments: Any, **_named: Any) -> _Symbol:
        return self

    def __repr__(self) -> str:
        return self._name


class constexpr:  # noqa: N801
    """A constant of a kernel: an annotation, or a value of a module."""

    def __init__(self, value: Any) -> None:
        self.value = getattr(value, "value", value)

    def __index__(self) -> int:
        return int(self.value)


class Config:
    """One configuration of a kernel."""

    def __init__(
        self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, num_ctas: int = 1,
        maxnreg: int | None = None, pre_hook: Callable[..., Any] | None = None, ir_override: str | None = None,
    ) -> None:  # fmt: skip
        self.kwargs, self.num_warps, self.num_stages, self.num_ctas = kwargs, num_warps, num_stages, num_ctas
        self.maxnreg, self.pre_hook, self.ir_override = maxnreg, pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages, "num_ctas": self.num_ctas}


class KernelInterface:
    """What can be launched by `kernel[grid](...)`."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid, warmup=False)

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        raise NotImplementedError

    def warmup(self, *arguments: Any, grid: Any = None, **named: Any) -> Any:
        return self.run(*arguments, grid=grid, warmup=True, **named)


class JITFunction(KernelInterface):
    """A kernel; `launches` of the program that has it."""

    launches: Launches

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.arg_names = list(inspect.signature(fn).parameters)
        self.params = [SimpleNamespace(name=name) for name in self.arg_names]

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Launched:  # noqa: ARG002
        if self.launches.compiles:  # torch reads a kernel in a compiled function by the package itself
            raise TraceError(
                "the program compiles, launches kernels of Triton, and triton is not installed here", remedy=_INSTALL
            )
        return self.launches.launch(self, *arguments, **named)

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


class Heuristics(KernelInterface):
    """A kernel of which some arguments follow from others."""

    def __init__(self, fn: Any, values: Mapping[str, Callable[..., Any]]) -> None:
        self.fn, self.values, self.arg_names = fn, values, fn.arg_names

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        for name, value in self.values.items():
            named[name] = value({**dict(zip(self.arg_names, arguments, strict=False)), **named})
        return self.fn.run(*arguments, grid=grid, warmup=warmup, **named)


class Autotuner(KernelInterface):
    """A kernel of several configurations, of which the first is taken (triton/runtime/autotuner.py)."""

    def __init__(
        self, fn: Any, configs: Sequence[Config], key: Sequence[str], reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None, pre_hook: Any = None, post_hook: Any = None,
        prune_configs_by: Mapping[str, Any] | None = None, **_settings: Any,
    ) -> None:  # fmt: skip
        self.fn, self.arg_names = fn, fn.arg_names
        self.configs = list(configs) or [Config({})]
        self.keys = list(key)
        self.cache: dict[tuple[Any, ...], Config] = {}
        self._zeroed, self._restored = list(reset_to_zero or ()), list(restore_value or ())
        self._before, self._after, self._prune = pre_hook, post_hook, prune_configs_by or {}

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        given = {**dict(zip(self.arg_names, arguments, strict=False)), **named}
        dtypes = (str(value.dtype) for value in given.values() if hasattr(value, "dtype"))
        key = (*(given[name] for name in self.keys if name in given), *dtypes)
        if key not in self.cache:
            configs = self.configs
            if len(configs) > 1 and "early_config_prune" in self._prune:
                configs = self._prune["early_config_prune"](configs, given, **named)
            for config in configs if len(configs) > 1 else ():
                JITFunction.launches.timed(functools.partial(self._once, config, given, arguments, named, grid))
            self.cache[key] = configs[0]
        chosen = self.cache[key]
        if chosen.pre_hook is not None:
            chosen.pre_hook({**given, **chosen.all_kwargs()})
        return self.fn.run(*arguments, grid=grid, warmup=warmup, **named, **chosen.all_kwargs())

    def _once(
        self, config: Config, given: dict[str, Any], arguments: tuple[Any, ...], named: dict[str, Any], grid: Any
    ) -> None:
        if self._before is not None:
            self._before({**given, **config.all_kwargs()})
        for name in self._zeroed:
            given[name].zero_()
        kept = {name: given[name].clone() for name in self._restored}
        self.fn.run(*arguments, grid=grid, warmup=False, **named, **config.all_kwargs())
        for name, value in kept.items():
            given[name].copy_(value)


def cdiv(x: int, y: int) -> int:
    """Division that rounds up."""
    return (x + y - 1) // y


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(n - 1, 0).bit_length()


class TensorDescriptor:
    """A tensor as a kernel's argument, made on the host (triton/tools/tensor_descriptor.py)."""

    def __init__(self, base: torch.Tensor, shape: Any, strides: Any, block_shape: Any, *_settings: Any) -> None:
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, block_shape

    @staticmethod
    def from_tensor(tensor: torch.Tensor, block_shape: Any) -> TensorDescriptor:
        return TensorDescriptor(tensor, tensor.shape, tensor.stride(), block_shape)


class _Part(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            f"the program uses {self.__name__}.{name}, and triton is not installed here",
            allowed=", ".join(sorted(known for known in vars(self) if not known.startswith("_"))),
            remedy=_INSTALL,
        )


class Package(_Part):
    """The package itself."""


class _Language(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Symbol(f"tl.{name}")


def modules(launches: Launches) -> dict[str, ModuleType]:
    """The package's modules, by their names; launches are told to `launches`."""
    JITFunction.launches = launches
    kernels = {"JITFunction": JITFunction, "KernelInterface": KernelInterface}
    tuned = {"Autotuner": Autotuner, "Heuristics": Heuristics, "Config": Config}
    functions = {
        "jit": lambda fn=None, **_settings: JITFunction if fn is None else JITFunction(fn),
        "autotune": lambda configs, key, **settings: lambda fn: Autotuner(fn, configs, key, **settings),
        "heuristics": lambda values: lambda fn: Heuristics(fn, values),
    }
    active = {"active": launches.driver, "set_active": lambda _driver: None, "reset_active": lambda: None}
    timing = {"do_bench": launches.timed, "do_bench_cudagraph": launches.timed}
    contents: dict[str, dict[str, Any]] = {
        "": {
            **kernels, **tuned, **functions, "__version__": "3.9.0", "cdiv": cdiv, "next_power_of_2": next_power_of_2,
            "set_allocator": launches.set_allocator,
            "constexpr_function": lambda fn: fn,  # which bodies of kernels call while they are compiled
        },
        "runtime": {**kernels, **tuned},
        "runtime.driver": {**active, "driver": SimpleNamespace(**active)},
        "runtime.jit": {**kernels, "jit": functions["jit"]},
        "runtime.autotuner": {**tuned, **{name: functions[name] for name in ("autotune", "heuristics")}},
        "testing": timing,
        "tools": {},
        "tools.tensor_descriptor": {"TensorDescriptor": TensorDescriptor},
        **{name: {"constexpr": constexpr} for name in _LANGUAGE},
    }  # fmt: skip
    package: dict[str, ModuleType] = {}
    for name, content in contents.items():
        kind: type[ModuleType] = _Language if name.startswith("language") else _Part if name else Package
        module = kind(f"triton.{name}" if name else "triton")
        vars(module).update(content)
        package[module.__name__] = module
    for name, module in package.items():
        parent, _, last = name.rpartition(".")
        if parent:
            vars(package[parent])[last] = module
    return package
