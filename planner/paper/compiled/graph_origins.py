"""Of which module and operator of the program a node of a compiled graph is, by what Dynamo wrote down."""

from __future__ import annotations

import re
from typing import Any

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
