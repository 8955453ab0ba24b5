"""Describes the error of a traced step or of torch's compilers: which module ran, at which line of the program."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from torch import nn

from planner.errors import TraceError


def untraceable(error: Exception, *, compiles: bool) -> TraceError:
    """The error for a person; the exception itself stays its cause. `compiles`: the job asks for torch.compile."""
    said = _first_words(str(error))
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if (compiled := of_compiling(error, said, _module(frames), asked=compiles)) is not None:
        return compiled
    return TraceError(
        f"the step cannot be traced{_module(frames)}{_line_of_error(error)}: {type(error).__name__}: {said[:300]}",
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


def _line_of_error(error: Exception) -> str:
    """The last line of the program itself, neither torch's nor planner's."""
    found = [
        f" at {Path(frame.f_code.co_filename).name}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "planner")
    ]
    return found[-1] if found else ""


_COMPILERS = ("torch._dynamo.", "torch._inductor.")
"""Where errors of compiling come from."""
_PLACE, _MODE = "train.compile", "train.compile.mode"
# As torch 2.13 says it: torch/_library/custom_ops.py, torch/_dynamo/exc.py, torch/_inductor/cudagraph_trees.py.
_NO_FAKE = re.compile(r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>")
_PROGRAM = re.compile(r'from user code:\s+File "([^"]+)", line (\d+)')
_READS_VALUE = ("Data-dependent", "data-dependent")
_OVERWRITTEN = "of CUDAGraphs that has been overwritten"


def of_compiling(error: Exception, said: str, module: str, *, asked: bool) -> TraceError | None:
    """The error for a person; None for an error that is none of compiling. `said`: its first words, `module`: what was
    at work, as a part of a sentence, `asked`: whether the job asks for torch.compile."""
    text = str(error)
    if not asked and type(error).__module__.startswith(_COMPILERS):
        return TraceError(
            f"the model compiles by itself{module}, and the job does not say that it compiles",
            allowed="torch.compile in code of the model's own beside train.compile",
            remedy="say in train.compile what else is compiled (loss, if nothing): then the model's own is as well",
            place=_PLACE,
        )
    if _OVERWRITTEN in said:
        return TraceError(
            f"a CUDA graph writes over what is still used{module}: {said[:300]}",
            allowed="results and gradients that nobody needs when the next compiled part runs",
            remedy="compile without CUDA graphs (mode: default, or max-autotune-no-cudagraphs)",
            place=_MODE,
        )
    if not type(error).__module__.startswith(_COMPILERS):
        return None
    where = f"{_line_of_message(text)}{module}"
    if unknown := _NO_FAKE.search(text):
        return TraceError(
            f"the operator {unknown[1]} has no fake implementation, which compiling asks for{where}",
            allowed="operators that say of which shape and dtype their results are",
            remedy=f'write one for it: @torch.library.register_fake("{unknown[1]}")',
            place=_PLACE,
        )
    if said.startswith(_READS_VALUE):
        return TraceError(
            f"the compiled step reads a value of a device tensor{where}: {said[:300]}",
            allowed="control flow that does not depend on values of device tensors",
            remedy="keep such decisions on the host, or use torch.where or torch.cond",
            place=_PLACE,
        )
    return TraceError(
        f"the step cannot be compiled{where}: {type(error).__name__}: {said[:300]}",
        allowed="a step that Dynamo captures and Inductor compiles",
        remedy="compile the step on a real device first; where the graph breaks, leave fullgraph out; if it compiles"
        " there, planner lacks something: report this line",
        place=_PLACE,
    )


def _line_of_message(text: str) -> str:
    """The line of the program that Dynamo names."""
    found = _PROGRAM.search(text)
    return f" at {Path(found[1]).name}:{found[2]}" if found else ""
