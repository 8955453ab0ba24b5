"""Describes the error of a traced step or of torch's compilers: which module ran, at which line of the program."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from torch import nn

from planner.errors import TraceError

_COMPILERS = ("torch._dynamo.", "torch._inductor.")
"""Where errors of compiling come from."""
_PLACE, _MODE = "train.compile", "train.compile.mode"
# As torch 2.13 says it: torch/_library/custom_ops.py, torch/_dynamo/exc.py, torch/_inductor/cudagraph_trees.py.
_NO_FAKE = re.compile(r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>")
_PROGRAM = re.compile(r'from user code:\s+File "([^"]+)", line (\d+)')
_READS_VALUE = ("Data-dependent", "data-dependent", "Dynamic control flow is not supported")
_OVERWRITTEN = "of CUDAGraphs that has been overwritten"


def untraceable(error: Exception) -> TraceError:
    """The error for a person; the exception itself stays its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_announced = len(lines) > 1 and lines[0].endswith(("raised:", ":"))  # another error, in the next line
    summary = " ".join(lines[: 2 if is_announced else 1])
    module = _module([frame for frame, _ in traceback.walk_tb(error.__traceback__)])
    return _compiling_error(error, summary, module) or TraceError(
        f"the step cannot be traced{module}{_line_of_error(error)}: {type(error).__name__}: {summary[:300]}",
        allowed="a step that runs on a GPU and reads no values of device tensors on the host",
        remedy="run the step on a real device first; if it works there, planner lacks a kernel: report this line",
    )


def _module(frames: Sequence[FrameType]) -> str:
    """The innermost module that was at work: its path in the outermost, and its class."""
    owners = (frame.f_locals.get("self") for frame in frames)
    modules = [owner for owner in owners if isinstance(owner, nn.Module) and "_modules" in vars(owner)]  # made already
    if not modules:
        return ""
    names = {id(module): name for name, module in modules[0].named_modules(remove_duplicate=False)}
    path, kind = names.get(id(modules[-1]), ""), type(modules[-1]).__name__
    return f" in {path} ({kind})" if path else f" in {kind}"


def _line_of_error(error: Exception) -> str:
    lines = [
        f" at {Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _package_of(frame) not in ("torch", "planner", "runpy")
    ]
    return lines[-1] if lines else ""


def _package_of(frame: FrameType) -> str:
    """Also of a program, whose module is called `__main__`."""
    return str(frame.f_globals.get("__package__") or frame.f_globals.get("__name__", "")).partition(".")[0]


def _compiling_error(error: Exception, summary: str, module: str) -> TraceError | None:
    """None if the error does not come from compiling. `module`: the module at work, as a part of a sentence."""
    text = str(error)
    if _OVERWRITTEN in summary:
        return TraceError(
            f"a CUDA graph writes over what is still used{module}: {summary[:300]}",
            allowed="results and gradients that nobody needs when the next compiled part runs",
            remedy="compile without CUDA graphs (mode: default, or max-autotune-no-cudagraphs)",
            place=_MODE,
        )
    if not type(error).__module__.startswith(_COMPILERS):
        return None
    line = _PROGRAM.search(text)  # as Dynamo names it
    where = f"{f' at {Path(line[1]).name}:{line[2]}' if line else ''}{module}"
    if unknown := _NO_FAKE.search(text):
        return TraceError(
            f"the operator {unknown[1]} has no fake implementation, which compiling asks for{where}",
            allowed="operators that say of which shape and dtype their results are",
            remedy=f'write one for it: @torch.library.register_fake("{unknown[1]}")',
            place=_PLACE,
        )
    if summary.startswith(_READS_VALUE):
        return TraceError(
            f"the compiled step reads a value of a device tensor{where}: {summary[:300]}",
            allowed="control flow that does not depend on values of device tensors",
            remedy="keep such decisions on the host, or use torch.where or torch.cond",
            place=_PLACE,
        )
    return TraceError(
        f"the step cannot be compiled{where}: {type(error).__name__}: {summary[:300]}",
        allowed="a step that Dynamo captures and Inductor compiles",
        remedy="compile the step on a real device first; where the graph breaks, leave fullgraph out; if it compiles"
        " there, planner lacks something: report this line",
        place=_PLACE,
    )
