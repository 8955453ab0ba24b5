"""Kernels that programs load from a hub by `kernels.get_kernel`: those that are modelled, without a network."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from planner.paper.outside import flash_attention_2, flash_attention_3
from planner.paper.outside.operators import refuse

_FLASH_2 = ("kernels-community/flash-attn", "kernels-community/flash-attn2")
_FLASH_3 = (
    "kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3", "varunneal/flash-attention-3",
)  # fmt: skip
_NAMED = (
    (re.compile(r"flash-?att(entio)?n-?3"), "flash-attn 3", flash_attention_3),
    (re.compile(r"flash-?att(entio)?n-?2?$"), "flash-attn 2", flash_attention_2),
)
"""Copies of other owners: `varunneal/flash-attention-3` is one."""
_added: dict[str, ModuleType] = {}
_say: Callable[[str], None] = lambda _sentence: None  # noqa: E731


def tell(say: Callable[[str], None]) -> None:
    """Whoever hears what is taken for something else from now on."""
    global _say
    _say = say


def add(repository: str, module: ModuleType) -> None:
    """A user's own description of a repository's kernels."""
    _added[repository] = module


def get_kernel(repo_id: str, *_arguments: Any, **_named: Any) -> ModuleType:
    """The module that stands for a repository, also for a copy of one. Raises TraceError for others."""
    if repo_id in _added:
        return _added[repo_id]
    if repo_id in _FLASH_2:
        return _module(repo_id, flash_attention_2)
    if repo_id in _FLASH_3:
        return _module(repo_id, flash_attention_3)
    name = repo_id.rpartition("/")[2].lower().replace("_", "-")
    for pattern, package, functions in _NAMED:
        if pattern.search(name):
            _say(f"the kernels of {repo_id} are taken for those of {package}, by their name")
            return _module(repo_id, functions)
    return refuse(
        f"the program loads the kernels of {repo_id} from a hub",
        "what they allocate is not known",
        ", ".join((*_FLASH_2, *_FLASH_3)),
    )


def _module(repository: str, functions: ModuleType) -> ModuleType:
    """As a kernel's own module: its functions, and the same again as `flash_attn_interface`."""
    made = ModuleType(repository.rpartition("/")[2].replace("-", "_"))
    for name in (each for each in vars(functions) if each.startswith("flash_attn")):
        setattr(made, name, getattr(functions, name))
    made.flash_attn_interface = made  # type: ignore[attr-defined]
    return made
