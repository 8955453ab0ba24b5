"""What the frames of an allocation in a snapshot tell: the program's line, the module, the phase it was born in.

A recorded one has lines of programs; in a snapshot of planner's own (planner.report.memory_viz) the frames say
themselves what they are, and parameters have their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.events import Phase

_LONGEST = 160
"""Characters of what is said of a frame."""
_OPERATOR = re.compile(r"at::_ops::(\w{1,80})::call\(")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w{1,80})::apply\(")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/", re.IGNORECASE)
PLANNED = "planned"
"""The key by which planner tells its own frames: what each of them says (`ORIGIN`, `ROLE`, `PHASE`)."""
ORIGIN, ROLE, PHASE = "origin", "role", "phase"
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
    """The innermost line of the program itself: what is not in torch's own files, else whatever was recorded.

    Inside of a module of the program's own, a library that it calls (einops, say) is passed over: the module's line
    tells one use from another. Autograd's thread has no line of Python; there it is what autograd worked at.
    """
    if named := _planned(frames, ROLE):
        return f"{_file(named)} {_name(named)}"[:_LONGEST]
    python = [frame for frame in frames if _file(frame).endswith(".py")]
    own = [frame for frame in python if not _of_torch(frame)]
    module = next((index for index, frame in enumerate(own) if frame.get("name") == "forward"), None)
    if module is not None and not _of_library(own[module]):
        own = [frame for frame in own[: module + 1] if not _of_library(frame)]
    if not python and (worked := _autograds_work(frames)):
        return worked
    return next((_said(frame) for frame in (*own[:1], *python[:1], *frames[:1])), "")


def _autograds_work(frames: Sequence[Mapping[str, Any]]) -> str:
    """The node of autograd's graph in these C++ frames, else the operator by which its engine adds gradients up."""
    if not any("autograd::Engine" in _name(frame) for frame in frames):
        return ""
    nodes = (_NODE.search(_name(each)) for each in frames)
    return f"autograd {next((each[1] for each in nodes if each), operator_of(frames) or 'engine')}"


def module_line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost `forward` that is not torch's own: the module whose work it was; empty where frames show none."""
    if planned := _planned(frames, ORIGIN):
        return _file(planned)
    return next((_said(each) for each in frames if each.get("name") == "forward" and not _of_torch(each)), "")


def operator_of(frames: Sequence[Mapping[str, Any]]) -> str:
    """The operator that the program called, as `aten.relu`, where C++ frames were recorded; else empty."""
    if planned := _planned(frames, ORIGIN):
        return _name(planned)
    calls = (_OPERATOR.search(_name(each)) for each in frames)
    return next((f"aten.{match[1]}" for match in reversed([each for each in calls if each])), "")


def phase_of(frames: Sequence[Mapping[str, Any]]) -> Phase | None:
    """In which phase of training these frames lie; None where they do not show one.

    A recomputed forward has frames of both, and is of the backward; C++ frames have the names of autograd's engine.
    """
    if planned := _planned(frames, PHASE):
        return next((each for each in Phase if each.value == _name(planned)), None)
    if any(_of_torch(each, "/torch/optim/") for each in frames):
        return Phase.OPTIMIZER_STEP
    if any((each.get("name") in _BACKWARD and _of_torch(each)) or "autograd::Engine" in _name(each) for each in frames):
        return Phase.BACKWARD
    if any(each.get("name") in _CALL and _of_torch(each, "/torch/nn/modules/module.py") for each in frames):
        return Phase.FORWARD
    return None


def _of_torch(frame: Mapping[str, Any], part: str = "/torch/") -> bool:
    return part in _file(frame)


def _of_library(frame: Mapping[str, Any]) -> bool:
    return _LIBRARY.search(_file(frame)) is not None


def _file(frame: Mapping[str, Any]) -> str:
    """With slashes: Windows records backslashes."""
    return str(frame.get("filename", "")).replace("\\", "/")


def _name(frame: Mapping[str, Any]) -> str:
    return str(frame.get("name", ""))


def short_path(path: str) -> str:
    """Its last three parts, and the root where nothing else stands before them."""
    last = "/".join(path.split("/")[-3:])
    return path if path == f"/{last}" else last


def _said(frame: Mapping[str, Any]) -> str:
    if frame.get(PLANNED) == ORIGIN:
        return f"{_file(frame)} {_name(frame)}"[:_LONGEST]
    return f"{short_path(_file(frame))}:{frame.get('line', '')} {_name(frame)}"[:_LONGEST]


def _planned(frames: Sequence[Mapping[str, Any]], about: str) -> Mapping[str, Any] | None:
    return next((each for each in frames if each.get(PLANNED) == about), None)
