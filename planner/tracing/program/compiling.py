"""Compiles what a program compiles, from its first `torch.compile` on, for the paper GPU that it runs on."""

from __future__ import annotations

import functools
import importlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from planner import upstream
from planner.errors import TraceError
from planner.paper.compiled import Compiling, enable
from planner.paper.recorder import Recorder

_PLANNER = Path(__file__).parents[2]
_WATCHING = tuple(f"{_PLANNER / folder}/" for folder in ("paper", "roles", "tracing", "upstream"))
_KERNELS = f"{_PLANNER / 'paper' / 'outside'}/"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_NOT_COMPILED = "{name}, which torch 2.13 has deprecated, is called as before that: outside of what is compiled"


class ProgramCompiling:
    """Switches compiling on when it is first asked for: Dynamo lists torch's functions as they are then, which is
    after `init_process_group` in most programs, and who compiles nothing does not load Inductor."""

    def __init__(self, recorder: Recorder, seconds: float, *, as_asked: bool = False) -> None:
        self._recorder, self._seconds, self._as_asked = recorder, seconds, as_asked
        self._stack = ExitStack()
        self._compiling: Compiling | None = None
        self._skipped: set[str] = set()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, the program may compile."""
        wrapped: dict[str, upstream.Wrapper] = {
            "torch:compile": self._enabling,
            "torch._dynamo.convert_frame:_compile": self._frame_by_frame,
        }
        with self._stack, upstream.patch_targets("program compiles", wrapped=wrapped):
            yield

    def assumed(self) -> tuple[str, ...]:
        """What was assumed where a GPU would have been timed, and where graphs broke, as sentences."""
        if self._compiling is None:
            return ()
        breaks = (
            f"A graph broke: {' '.join(_ADDRESS.sub('', reason).split())[:200]}" for reason in self._compiling.breaks()
        )
        skipped = (_NOT_COMPILED.format(name=name) for name in sorted(self._skipped))
        return (*self._compiling.assumed(), *skipped, *breaks)

    def _enabling(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)  # what asks for its signature sees torch's
        def compile_(*arguments: Any, **options: Any) -> Any:
            if self._compiling is None:
                # First: it starts no processes that compile.
                importlib.import_module("planner.paper.compiled.generated")
                seconds = min(self._seconds, threading.TIMEOUT_MAX)
                compiling = enable(self._recorder, as_asked=self._as_asked, seconds=seconds)
                self._compiling = self._stack.enter_context(compiling)
            return real(*arguments, **options)

        return compile_

    def _frame_by_frame(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def compile_frame(
            code: CodeType, names: dict[str, Any], values: dict[str, Any], *rest: Any, **options: Any
        ) -> Any:
            if self._compiling is None:
                raise TraceError(
                    "the program compiles by other means than torch.compile",
                    allowed="torch.compile, as a function, a decorator or a module's method",
                    remedy="switch compilation off in the program, or put TORCHDYNAMO_DISABLE=1 before the command and "
                    "read the report as that of the eager program",
                )
            if _is_of_planner(code):
                return _skip_frame()
            if deprecated := _deprecated_collective(code, values):
                self._skipped.add(deprecated)
                return _skip_frame(apply_to_code=False)
            return real(code, names, values, *rest, **options)

        return compile_frame


def _skip_frame(**options: Any) -> Any:
    """What torch's conversion gives of a frame that it leaves as it is (torch 2.13, _dynamo/types.py; None in 2.6)."""
    from torch._dynamo import types

    made = getattr(types, "ConvertFrameReturn", None)
    return made and made(**options)


def _is_of_planner(code: CodeType) -> bool:
    """Whether it watches the program or answers in a GPU's place, which no GPU has: compiled, it would bring a dozen
    graphs for each value that is read, and each step, within a compiled function. Kernels stand for a job's own."""
    return code.co_filename.startswith(_WATCHING) and not code.co_filename.startswith(_KERNELS)


def _deprecated_collective(code: CodeType, values: dict[str, Any]) -> str:
    """The function of torch.distributed, if any, that a frame of `typing_extensions.deprecated` is about to call.

    Dynamo compiles no frame of torch.distributed (torch 2.13, _dynamo/trace_rules.py), but torch 2.13 has deprecated
    some collectives, and these frames are not its own.
    """
    called = values.get("arg")
    if code.co_name != "wrapper" or not str(getattr(called, "__module__", "")).startswith("torch.distributed"):
        return ""
    return str(getattr(called, "__name__", ""))
