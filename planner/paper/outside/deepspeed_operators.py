"""What DeepSpeed's builders of extensions give: updates in place, which allocate nothing and compute nothing.

Source, DeepSpeed 0.19.8: ops/csrc/adam/{fused_adam_frontend,cpu_adam}.cpp, ops/csrc/lion/*.cpp,
ops/csrc/adagrad/cpu_adagrad.cpp, ops/csrc/utils/flatten_unflatten.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


def _nothing(*_arguments: Any, **_named: Any) -> None:
    """Writes to what it is given."""


_CONTENTS: dict[str, dict[str, Callable[..., Any]]] = {
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
"""By the names of the builders (`NAME` in deepspeed/ops/op_builder)."""
NAMES = tuple(_CONTENTS)


def by_name(name: str) -> ModuleType | None:
    """The extension of this name; None for one that is not modelled."""
    if name not in _CONTENTS:
        return None
    made = ModuleType(name)
    vars(made).update(_CONTENTS[name])
    return made
