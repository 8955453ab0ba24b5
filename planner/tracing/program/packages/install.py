"""Puts everything in its place that a program of one rank finds of other packages' kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.utils._triton import has_triton_package

from planner import upstream
from planner.errors import PlannerError
from planner.paper.recorder import Recorder
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.gpu_statistics import ManagementLibrary
from planner.tracing.program.packages import kernels, libraries, package_table, stand_ins, triton_package
from planner.tracing.program.rank_orders import ProgramOrder
from planner.training.wraps import deepspeed_engine


class Surroundings:
    """Of one program. `properties` are those of its GPU (`torch.cuda.get_device_properties`)."""

    def __init__(
        self,
        order: ProgramOrder,
        properties: Any,
        library: ManagementLibrary,
        assumptions: Assumptions,
        recorder: Recorder,
    ) -> None:
        self._order, self._library, self._assumptions, self._recorder = order, library, assumptions, recorder
        self._launches = triton_package.Launches(properties, assumptions)
        self._stack = ExitStack()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, packages are found, nothing is built, and kernels of Triton are launched as nothing."""
        own = kernels.read(self._order.kernels)
        kernels.tell(partial(self._assumptions.add, About.PACKAGES))
        here, line = Path.cwd(), self._order.line
        folders = dict.fromkeys((here if line.is_module else Path(line.program).resolve().parent, here))
        listed = package_table.listed(folders)
        provided = stand_ins.provided_by(self._order.packages, listed)
        has_triton = has_triton_package()  # torch remembers the answer, also when a stand-in is there
        stands = {} if has_triton else triton_package.modules(self._launches)
        with (
            self._stack,
            stand_ins.found(provided, {"pynvml": self._library.module(), **own.modules}, stands, self._assumptions),
            kernels.not_built(own.built),
            libraries.no_libraries(),
            libraries.followed(self._patches(own.built, has_triton=has_triton)),
        ):
            try:
                yield
            except PlannerError:
                raise
            except Exception as error:
                lacking = package_table.error_of(error, line, own.modules.keys(), listed)
                if lacking is None:
                    raise
                raise lacking from error

    def compiling_begins(self) -> None:
        """The program compiles, for which torch looks for Triton: it finds no stand-in, whose launches are refused from
        here on. Whoever has imported it keeps it."""
        self._launches.compiles = True
        if isinstance(sys.modules.get("triton"), triton_package.Package):
            for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
                del sys.modules[name]

    def _patches(self, built: Mapping[str, ModuleType], *, has_triton: bool) -> dict[str, Callable[[], None]]:
        """What is done to packages that are installed, once they are imported."""

        def deepspeed_begins() -> None:
            # It frees on one stream what another uses, and waits for events: its cache depends on when those pass.
            self._recorder.waits = True

        def builders() -> AbstractContextManager[None]:
            wrapped = {"deepspeed.ops.op_builder.builder:OpBuilder.load": kernels.deepspeed_builder(built)}
            return upstream.patch_targets("deepspeed builds", wrapped=wrapped)

        patches: dict[str, Callable[[], AbstractContextManager[Any]]] = {
            "bitsandbytes.cuda_setup.main": libraries.patched_search,
            "bitsandbytes.cextension": libraries.bitsandbytes_patched,
            "kernels": kernels.hub_patched,
            "transformer_engine.common": libraries.transformer_engine_patched,
            "deepspeed": lambda: deepspeed_engine.in_a_program(deepspeed_begins),
            "deepspeed.ops.op_builder.builder": builders,
        }
        if has_triton:
            patches["triton"] = self._launches.patched
        entering = {name: partial(self._enter, patch) for name, patch in patches.items()}
        without_triton = partial(
            self._assumptions.add,
            About.PACKAGES,
            "triton is not installed here, and torch for CUDA always brings it: a stand-in launches nothing",
        )
        return {"triton": without_triton, **entering}

    def _enter(self, patch: Callable[[], AbstractContextManager[Any]]) -> None:
        self._stack.enter_context(patch())
