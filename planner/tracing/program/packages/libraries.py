"""What a program finds of other packages: stand-ins, kernels of a user's own, and installed packages that lack their
compiled part (TransformerEngine)."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
from planner.tracing.program.packages import kernels, package_table, stand_ins, triton_package
from planner.tracing.program.rank_orders import ProgramOrder
from planner.training.wraps import deepspeed_engine


class Surroundings:
    def __init__(
        self,
        order: ProgramOrder,
        library: ManagementLibrary,
        assumptions: Assumptions,
        recorder: Recorder,
    ) -> None:
        self._order, self._library, self._assumptions, self._recorder = order, library, assumptions, recorder
        self._launches = triton_package.Launches(assumptions)
        self._stack = ExitStack()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, packages are found, nothing is built, and kernels of Triton are launched as nothing."""
        own = kernels.read(self._order.kernels)
        kernels.tell(partial(self._assumptions.add, About.PACKAGES))
        here, line = Path.cwd(), self._order.line
        folders = dict.fromkeys((here if line.is_module else Path(line.program).resolve().parent, here))
        listed = package_table.listed(folders)
        provided = stand_ins.find_provided(self._order.packages, listed)
        versions = stand_ins.named_versions(self._order.packages)
        with (
            self._stack,
            stand_ins.providing(
                provided, versions, {"pynvml": self._library.module(), **own.modules}, self._assumptions
            ),
            _without_libraries(),
            _followed(self._patches(own.built)),
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

    def _patches(self, built: Mapping[str, ModuleType]) -> dict[str, Callable[[], None]]:
        def deepspeed_begins() -> None:
            # It frees on one stream what another uses, and waits for events: its cache depends on when those pass.
            self._recorder.waits = True

        def builders() -> AbstractContextManager[None]:
            wrapped = {"deepspeed.ops.op_builder.builder:OpBuilder.load": kernels.deepspeed_builder(built)}
            return upstream.patch_targets("deepspeed builds", wrapped=wrapped)

        patches: dict[str, Callable[[], AbstractContextManager[Any]]] = {
            "cutlass.cute": kernels.cutlass_patched,
            "kernels": kernels.hub_patched,
            "torch.utils.cpp_extension": lambda: kernels.not_built(built),
            "deepspeed": lambda: deepspeed_engine.in_a_program(deepspeed_begins),
            "deepspeed.ops.op_builder.builder": builders,
            "triton": self._launches.patched,
        }
        if not stand_ins.runs_as_installed(_EXTENSION):
            patches["transformer_engine.common"] = _transformer_engine_patched
        return {name: partial(self._enter, patch) for name, patch in patches.items()}

    def _enter(self, patch: Callable[[], AbstractContextManager[Any]]) -> None:
        self._stack.enter_context(patch())


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


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, then: Callable[[], None]) -> None:
        self._real, self._then = real, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._then()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, then: Mapping[str, Callable[[], None]]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._then:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._then[name])
                return spec
        return None


@contextmanager
def _followed(then: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Inside, each function is called when the module of its name has been imported."""
    finder = _Finder(then)
    for name in then.keys() & sys.modules.keys():
        then[name]()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
