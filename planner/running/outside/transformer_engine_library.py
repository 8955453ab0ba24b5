"""TransformerEngine where its Python part is installed: no library of it is loaded, its extension is a stand-in.

Source, TransformerEngine 2.11: transformer_engine/common/__init__.py. The wheel `transformer-engine` alone has its
whole Python part and needs no GPU; what it would load comes from others.
"""

from __future__ import annotations

import importlib
import importlib.machinery
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner import upstream
from planner.paper.variables import variable_set

MODULE = "transformer_engine"
_BUILDING = "NVTE_PROJECT_BUILDING"
"""The package's own switch: with it nothing is loaded when it is imported, as while it is built."""


@contextmanager
def no_libraries() -> Iterator[None]:
    """Inside, the package looks for no libraries of CUDA when it is imported."""
    if importlib.machinery.PathFinder.find_spec(MODULE) is None:
        yield
        return
    with variable_set(_BUILDING, "1"):
        yield


def patched() -> Any:
    """Inside, the extension is imported as any module is; `transformer_engine.common` has just been imported."""

    def load(framework: str) -> None:
        importlib.import_module(f"{MODULE}_{framework}")

    target = f"{MODULE}.common:load_framework_extension"
    return upstream.patch_targets("program's TransformerEngine", replaced={target: load})
