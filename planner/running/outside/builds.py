"""Extensions that a program would compile while it runs: nothing is built; known ones are there, others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn

from planner import upstream
from planner.errors import TraceError
from planner.paper.outside import deepspeed_operators


@contextmanager
def not_built(own: Mapping[str, ModuleType]) -> Iterator[None]:
    """Inside, `torch.utils.cpp_extension` builds nothing; `own` has by name what a user described."""

    def load(name: str, *_arguments: Any, **_named: Any) -> ModuleType:
        return own[name] if name in own else _refuse(name)

    targets = ("load", "load_inline")
    replaced: dict[str, Callable[..., Any]] = {
        f"torch.utils.cpp_extension:{each}": (lambda *a, **k: load(*a, **k)) for each in targets
    }
    with upstream.patch_targets("program builds", replaced=replaced):
        yield


def deepspeed_builder(own: Mapping[str, ModuleType]) -> upstream.Wrapper:
    """`OpBuilder.load` of DeepSpeed 0.19 (op_builder/builder.py), which compiles at its first use."""

    def wrap(_real: Any) -> Any:
        def load(builder: Any, verbose: bool = True) -> ModuleType:  # noqa: ARG001
            name = str(builder.name)
            if name in own:
                return own[name]
            return deepspeed_operators.by_name(name) or _refuse(name)

        return load

    return wrap


def _refuse(name: str) -> NoReturn:
    raise TraceError(
        f"the program builds an extension {name!a}, whose kernels are not modelled",
        allowed=", ".join(deepspeed_operators.NAMES),
        remedy="describe its allocations in a Python file: kernels.extension(name, ...) under --kernels "
        "(docs/outside-kernels.md)",
    )
