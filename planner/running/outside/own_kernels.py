"""Kernels that a user describes in a file of the command (`--kernels FILE`): modules, hub repositories, built code.

The file has a function `register(kernels)`. What it registers receives tensors of the paper GPU, allocates with torch
what the kernel allocates, and returns what it returns.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from planner.errors import ProgramError
from planner.running.outside import hub_kernels

_PLACE = "--kernels"


@dataclass(slots=True)
class Kernels:
    """What `register` is given; a later registration of a name stands for an earlier one."""

    modules: dict[str, ModuleType] = field(default_factory=dict)
    built: dict[str, ModuleType] = field(default_factory=dict)

    def module(self, name: str, **contents: Any) -> None:
        """`import name` finds a module with these contents; parents that are not there are made."""
        made = _module(name, contents)
        self.modules[name] = made
        while "." in name:
            name, _, last = name.rpartition(".")
            parent = self.modules.setdefault(name, ModuleType(name))
            setattr(parent, last, made)
            made = parent

    def extension(self, name: str, **contents: Any) -> None:
        """What `torch.utils.cpp_extension.load` and DeepSpeed's builders give for this name, without building it."""
        self.built[name] = _module(name, contents)

    def hub(self, repository: str, **contents: Any) -> None:
        """What `kernels.get_kernel(repository)` gives."""
        hub_kernels.add(repository, _module(repository.rpartition("/")[2], contents))


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(contents)
    return made


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
            allowed="def register(kernels): ... (docs/outside-kernels.md)",
            remedy="write one that registers modules, extensions or hub repositories",
            place=path,
        )
    register(kernels)
    return kernels
