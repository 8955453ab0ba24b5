"""What the frames of a recorded allocation tell: the line of the program, the module, and the phase it was born in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.events import Phase

_LONGEST = 160
"""Characters of what is said of a frame."""
_OPERATOR = re.compile(r"at::_ops::(\w{1,80})::call\(")
_CALL = ("_call_impl", "_wrapped_call_impl", "__call__")
_BACKWARD = ("backward", "_engine_run_backward", "run_backward")


def frames_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The frames of an allocation or of a block, innermost first; of torch before 2.1 those of its last history."""
    frames = entry.get("frames")
    history = entry.get("history")
    if not frames and isinstance(history, list | tuple) and history and isinstance(history[0], Mapping):
        frames = history[0].get("frames")
    return [each for each in frames if isinstance(each, Mapping)] if isinstance(frames, list | tuple) else []


def own_line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost line of the program itself: what is not in torch's own files, else whatever was recorded."""
    python = [frame for frame in frames if _file(frame).endswith(".py")]
    own = [frame for frame in python if not _of_torch(frame)]
    return next((_said(frame) for frame in (*own[:1], *python[:1], *frames[:1])), "")


def module_line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost `forward` that is not torch's own: the module whose work it was; empty where frames show none."""
    return next((_said(each) for each in frames if each.get("name") == "forward" and not _of_torch(each)), "")


def operator_of(frames: Sequence[Mapping[str, Any]]) -> str:
    """The operator that the program called, as `aten.relu`, where C++ frames were recorded; else empty."""
    calls = (_OPERATOR.search(_name(each)) for each in frames)
    return next((f"aten.{match[1]}" for match in reversed([each for each in calls if each])), "")


def phase_of(frames: Sequence[Mapping[str, Any]]) -> Phase | None:
    """In which phase of training these frames lie; None where they do not show one.

    A recomputed forward has frames of both, and is of the backward; C++ frames have the names of autograd's engine.
    """
    if any(_of_torch(each, "/torch/optim/") for each in frames):
        return Phase.OPTIMIZER_STEP
    if any((each.get("name") in _BACKWARD and _of_torch(each)) or "autograd::Engine" in _name(each) for each in frames):
        return Phase.BACKWARD
    if any(each.get("name") in _CALL and _of_torch(each, "/torch/nn/modules/module.py") for each in frames):
        return Phase.FORWARD
    return None


def _of_torch(frame: Mapping[str, Any], part: str = "/torch/") -> bool:
    return part in _file(frame).replace("\\", "/")


def _file(frame: Mapping[str, Any]) -> str:
    return str(frame.get("filename", ""))


def _name(frame: Mapping[str, Any]) -> str:
    return str(frame.get("name", ""))


def _said(frame: Mapping[str, Any]) -> str:
    place = "/".join(_file(frame).split("/")[-3:])
    return f"{place}:{frame.get('line', '')} {_name(frame)}"[:_LONGEST]
