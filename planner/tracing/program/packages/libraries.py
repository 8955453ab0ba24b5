"""What a program finds of other packages: stand-ins, kernels of a user's own, and installed packages that lack their
compiled part (TransformerEngine)."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from planner import upstream
from planner.errors import PlannerError
from planner.paper.compiled.switch import variable_set
from planner.paper.recorder import Recorder
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.gpu_statistics import ManagementLibrary
from planner.tracing.program.packages import deepspeed_package, kernels, package_table, stand_ins, triton_package
from planner.tracing.program.rank_orders import ProgramOrder


@contextmanager
def found_packages(
    order: ProgramOrder,
    library: ManagementLibrary,
    assumptions: Assumptions,
    recorder: Recorder,
    begin_step: Callable[[], None],
) -> Iterator[None]:
    """Inside, packages are found, nothing is built, and kernels of Triton are launched as nothing. `begin_step` is
    called where a step of DeepSpeed begins."""
    own = kernels.read(order.kernels)
    kernels.tell(partial(assumptions.add, About.PACKAGES))
    here, line = Path.cwd(), order.line
    folders = dict.fromkeys((here if line.is_module else Path(line.program).resolve().parent, here))
    listed = package_table.listed(folders)
    provided = stand_ins.find_provided(order.packages, listed)
    versions = stand_ins.named_versions(order.packages)
    pynvml = library.module()
    modules = {"pynvml": pynvml, **own.modules}
    patches = _list_patches(own.built, triton_package.Launches(assumptions))
    patches["deepspeed"] = lambda: deepspeed_package.watched(recorder, pynvml, begin_step)
    with (
        stand_ins.providing(provided, versions, modules, assumptions),
        _without_libraries(),
        upstream.when_imported(patches),
    ):
        try:
            yield
        except PlannerError:
            raise
        except Exception as error:
            lacking = package_table.error_of(error, line, own.modules.keys(), listed, folders)
            if lacking is None:
                raise
            raise lacking from error


def _list_patches(built: Mapping[str, ModuleType], launches: triton_package.Launches) -> dict[str, upstream.Patch]:
    """By the modules that have to be imported before."""

    def builders() -> AbstractContextManager[None]:
        wrapped = {"deepspeed.ops.op_builder.builder:OpBuilder.load": kernels.deepspeed_builder(built)}
        return upstream.patch_targets("deepspeed builds", wrapped=wrapped)

    patches: dict[str, upstream.Patch] = {
        "cutlass.cute": kernels.cutlass_patched,
        "kernels": kernels.hub_patched,
        "torch.utils.cpp_extension": lambda: kernels.not_built(built),
        "deepspeed.ops.op_builder.builder": builders,
        "triton": launches.patched,
    }
    if not stand_ins.runs_as_installed(_EXTENSION):
        patches["transformer_engine.common"] = _transformer_engine_patched
    return patches


# Source, TransformerEngine 2.11: transformer_engine/common/__init__.py. The wheel `transformer-engine` alone has its
# whole Python part and needs no GPU; what it would load comes from others.
MODULE = "transformer_engine"
_EXTENSION = f"{MODULE}_torch"
"""Of which there is no wheel."""
_BUILDING = "NVTE_PROJECT_BUILDING"
"""The package's own switch: with it nothing is loaded when it is imported, as while it is built."""


@contextmanager
def _without_libraries() -> Iterator[None]:
    """Inside, the package looks for no libraries of CUDA when it is imported."""
    if stand_ins.runs_as_installed(_EXTENSION) or importlib.machinery.PathFinder.find_spec(MODULE) is None:
        yield
        return
    with variable_set(_BUILDING, "1"):
        yield


def _transformer_engine_patched() -> Any:
    """Inside, the extension is imported as any module is; `transformer_engine.common` has just been imported."""

    def load(framework: str) -> None:
        importlib.import_module(f"{MODULE}_{framework}")

    target = f"{MODULE}.common:load_framework_extension"
    return upstream.patch_targets("program's TransformerEngine", replaced={target: load})
