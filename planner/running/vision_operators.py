"""torchvision beside a build of torch without CUDA: its wheels want CUDA's libraries, and without them it cannot be
imported.

Its operators (non-maximum suppression, regions of interest) are then not there, and say so themselves when they are
called; all the rest of torchvision, its models and transforms, is Python on torch's own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from planner import upstream

_NAMESPACE = "torchvision::"
_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
"""Of `nms` and `qnms`, whose shapes torchvision 0.28 registers by name when it is imported (_meta_registrations.py)."""


@contextmanager
def declared() -> Iterator[None]:
    """Inside, torchvision is imported although the library of its operators cannot be loaded."""
    library: torch.library.Library | None = None

    def declaring(real: Callable[..., Any]) -> Callable[..., Any]:
        def register_fake(operator: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal library
            if isinstance(operator, str) and operator.startswith(_NAMESPACE) and not _is_there(operator):
                library = library or torch.library.Library("torchvision", "FRAGMENT")
                library.define(_SCHEMA.format(operator.removeprefix(_NAMESPACE)))
            return real(operator, *arguments, **named)

        return register_fake

    with upstream.patch_targets("program's vision", wrapped={"torch.library:register_fake": declaring}):
        yield


def _is_there(operator: str) -> bool:
    namespace, _, name = operator.partition("::")
    return hasattr(getattr(torch.ops, namespace), name)
