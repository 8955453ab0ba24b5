"""Describes the error of a traced step: which module ran, at which line of the program."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from torch import nn

from planner.errors import TraceError
from planner.tracing import compile_failures


def untraceable(error: Exception, *, compiles: bool) -> TraceError:
    """The error for a person; the exception itself stays its cause. `compiles`: the job asks for torch.compile."""
    said = _first_words(str(error))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if (compiled := compile_failures.of_compiling(error, said, _module(frames), asked=compiles)) is not None:
        return compiled
    return TraceError(
        f"the step cannot be traced{_module(frames)}{_line(error)}: {type(error).__name__}: {said[:300]}",
        allowed="a step that runs on a GPU and reads no values of device tensors on the host",
        remedy="run the step on a real device first; if it works there, planner lacks a kernel: report this line",
    )


def _first_words(text: str) -> str:
    """The first line, and the one after it where the first only announces another error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    announced = len(lines) > 1 and lines[0].endswith(("raised:", ":"))
    return " ".join(lines[: 2 if announced else 1])


def _module(frames: Sequence[FrameType]) -> str:
    """The innermost module that was at work: its path in the outermost, and its class."""
    frames_own = (frame.f_locals.get("self") for frame in frames)
    modules = [each for each in frames_own if isinstance(each, nn.Module) and "_modules" in vars(each)]  # made already
    if not modules:
        return ""
    names = {id(module): name for name, module in modules[0].named_modules(remove_duplicate=False)}
    path = names.get(id(modules[-1]), "")
    return f" in {path} ({type(modules[-1]).__name__})" if path else f" in {type(modules[-1]).__name__}"


def _line(error: Exception) -> str:
    """The last line of the program itself, neither torch's nor planner's."""
    found = [
        f" at {Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "planner")
    ]
    return found[-1] if found else ""
