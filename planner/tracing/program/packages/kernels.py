"""Kernels that a program loads from a hub, that its user describes (`--kernels FILE`), or that it would build."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from planner import upstream
from planner.errors import ProgramError, TraceError
from planner.paper.outside import flash_attention_2, flash_attention_3
from planner.paper.outside.operators import refuse
from planner.tracing.program.cuda import forget_values
from planner.tracing.program.packages import package_table

_KNOWN = {
    "kernels-community/flash-attn": flash_attention_2,
    "kernels-community/flash-attn2": flash_attention_2,
    "kernels-community/flash-attn3": flash_attention_3,
    "kernels-community/vllm-flash-attn3": flash_attention_3,
    "varunneal/flash-attention-3": flash_attention_3,
}
_NAMED = (
    (re.compile(r"flash-?att(entio)?n-?3"), "flash-attn 3", flash_attention_3),
    (re.compile(r"flash-?att(entio)?n-?2?$"), "flash-attn 2", flash_attention_2),
)
"""Copies of other owners: `varunneal/flash-attention-3` is one."""
_described: dict[str, ModuleType] = {}
"""By a user, by their repositories."""
_say: Callable[[str], None] = lambda _sentence: None  # noqa: E731


def tell(say: Callable[[str], None]) -> None:
    """From now on `say` hears which kernels are assumed to be others."""
    global _say
    _say = say


def get_kernel(repo_id: str, *_arguments: Any, **_named: Any) -> ModuleType:
    """The module that stands for a repository, also for a copy of one. Raises TraceError for others."""
    if repo_id in _described:
        return _described[repo_id]
    if repo_id in _KNOWN:
        return _hub_module(repo_id, _KNOWN[repo_id])
    name = repo_id.rpartition("/")[2].lower().replace("_", "-")
    for pattern, package, functions in _NAMED:
        if pattern.search(name):
            _say(f"the kernels of {repo_id} are assumed to be those of {package}, by their name")
            return _hub_module(repo_id, functions)
    return refuse(
        f"the program loads the kernels of {repo_id} from a hub",
        "what they allocate is not known",
        ", ".join(_KNOWN),
    )


def _hub_module(repository: str, functions: ModuleType) -> ModuleType:
    """As a kernel's own module: its functions, and the same again as `flash_attn_interface`."""
    contents = {name: function for name, function in vars(functions).items() if name.startswith("flash_attn")}
    module = _module(repository.rpartition("/")[2].replace("-", "_"), contents)
    module.flash_attn_interface = module  # type: ignore[attr-defined]
    return module


def hub_patched() -> AbstractContextManager[None]:
    """Inside, the package `kernels`, which has just been imported, loads nothing from a hub."""
    replaced = dict.fromkeys(("kernels:get_kernel", "kernels.load:get_kernel"), get_kernel)
    return upstream.patch_targets("program's hub kernels", replaced=replaced)


def cutlass_patched() -> AbstractContextManager[None]:
    """Inside, `cutlass.cute.compile` (flash-attn 4, quack) compiles nothing, and its kernels are launched as nothing;
    `cutlass.cute` has just been imported.

    A kernel writes to tensors that it is given. Its own launcher has CUDA's runtime linked in, which asks the driver
    for tables that are not documented (nvidia-cutlass-dsl 4.8, libcute_dsl_runtime.so).
    """

    def launch(*arguments: Any, **named: Any) -> None:
        forget_values((*arguments, *named.values()))

    replaced = {"cutlass.base_dsl.compiler:CompileCallable.__call__": lambda *_, **__: launch}
    return upstream.patch_targets("program compiles with cutlass", replaced=replaced)


def _module(name: str, contents: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


_PLACE = "--kernels"


@dataclass(slots=True)
class Kernels:
    """What `register` is given; a later registration of a name stands for an earlier one."""

    modules: dict[str, ModuleType] = field(default_factory=dict)
    built: dict[str, ModuleType] = field(default_factory=dict)

    def module(self, name: str, **contents: Any) -> None:
        """`import name` finds a module with these contents; parents that are not there are made."""
        module = self.modules[name] = _module(name, contents)
        while "." in name:
            name, _, last = name.rpartition(".")
            parent = self.modules.setdefault(name, ModuleType(name))
            setattr(parent, last, module)
            module = parent

    def extension(self, name: str, **contents: Any) -> None:
        """What `torch.utils.cpp_extension.load` and DeepSpeed's builders give for this name, without building it."""
        self.built[name] = _module(name, contents)

    def hub(self, repository: str, **contents: Any) -> None:
        """What `kernels.get_kernel(repository)` gives."""
        _described[repository] = _module(repository.rpartition("/")[2], contents)


def read(path: str) -> Kernels:
    """What the file registers; nothing without a file. Raises ProgramError for a file that does not."""
    kernels = Kernels()
    if not path:
        return kernels
    if not Path(path).is_file():
        raise ProgramError(
            f"there is no file {path[:200]!a}", allowed="a Python file with a function register(kernels)", place=_PLACE
        )
    register: Callable[[Kernels], Any] | None = runpy.run_path(path).get("register")
    if not callable(register):
        raise ProgramError(
            "the file has no function register",
            allowed="def register(kernels): ... (docs/run.md)",
            remedy="write one that registers modules, extensions or hub repositories",
            place=path,
        )
    register(kernels)
    return kernels


@contextmanager
def not_built(own: Mapping[str, ModuleType]) -> Iterator[None]:
    """Inside, `torch.utils.cpp_extension` builds nothing; `own` has by name what a user described. A program that
    catches what a build raises goes on without the extension."""

    def load(name: str, *_arguments: Any, **_named: Any) -> ModuleType:
        if name in own:
            return own[name]
        if package_table.is_guarded(package_table.frames(), package_table.NOT_BUILT):
            _say(f"the extension {name} is not built here, and the program goes on without it")
            raise RuntimeError(f"Error building extension '{name}'")
        return _refuse(name)

    def load_inline(*arguments: Any, **named: Any) -> ModuleType:
        return load(*arguments, **named)

    replaced = {"torch.utils.cpp_extension:load": load, "torch.utils.cpp_extension:load_inline": load_inline}
    with upstream.patch_targets("program builds", replaced=replaced):
        yield


def _nothing(*_arguments: Any, **_named: Any) -> None:
    """Writes to what it is given, and allocates nothing."""


# Source, DeepSpeed 0.19.8: ops/csrc/adam/{fused_adam_frontend,cpu_adam}.cpp, ops/csrc/lion/*.cpp,
# ops/csrc/adagrad/cpu_adagrad.cpp, ops/csrc/utils/flatten_unflatten.cpp.
_OF_DEEPSPEED: dict[str, dict[str, Callable[..., Any]]] = {
    "fused_adam": {"multi_tensor_adam": _nothing},
    "fused_lion": {"multi_tensor_lion": _nothing},
    "cpu_adam": dict.fromkeys(("adam_update", "adam_rollback", "create_adam", "destroy_adam"), _nothing),
    "cpu_lion": dict.fromkeys(("lion_update", "create_lion", "destroy_lion"), _nothing),
    "cpu_adagrad": dict.fromkeys(("adagrad_update", "create_adagrad", "destroy_adagrad"), _nothing),
    "utils": {
        "flatten": torch._C._nn.flatten_dense_tensors,
        "unflatten": torch._C._nn.unflatten_dense_tensors,
    },
}
"""Extensions by the names of their builders (`NAME` in deepspeed/ops/op_builder)."""


def deepspeed_builder(own: Mapping[str, ModuleType]) -> upstream.Wrapper:
    """`OpBuilder.load` of DeepSpeed 0.19 (op_builder/builder.py), which compiles at its first use."""

    def wrap(_real: Any) -> Any:
        def load(builder: Any, verbose: bool = True) -> ModuleType:  # noqa: ARG001
            name = str(builder.name)
            if name in own:
                return own[name]
            return _module(name, _OF_DEEPSPEED[name]) if name in _OF_DEEPSPEED else _refuse(name)

        return load

    return wrap


def _refuse(name: str) -> NoReturn:
    raise TraceError(
        f"the program builds an extension {name!a}, whose kernels are not modelled",
        allowed=", ".join(_OF_DEEPSPEED),
        remedy="describe its allocations in a Python file: kernels.extension(name, ...) under --kernels (docs/run.md)",
    )
