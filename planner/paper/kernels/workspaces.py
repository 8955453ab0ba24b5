"""The names of kernels whose workspaces nobody knows; a known one is taken with `table.scratch` in its kernel's file.

cuDNN is closed: what it asks for is not derived. A kernel that takes an unknown workspace says so, and the trace
carries the names, so that a plan can widen its interval.
"""

from __future__ import annotations

from planner.paper import library


def note_unknown_workspace(kernel: str) -> None:
    """This kernel has taken a workspace of a size that is not known; nothing is counted for it."""
    library.load().paper_workspace_is_unknown(kernel.encode())


def forget() -> None:
    """A trace begins."""
    library.load().paper_forget_unknown_workspaces()


def met() -> tuple[str, ...]:
    """The kernels of this trace whose workspaces are not counted, sorted."""
    names: bytes = library.load().paper_unknown_workspaces()
    return tuple(names.decode().splitlines())
