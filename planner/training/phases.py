"""Names the phases of a training job, for whoever watches it: by `record_function`, which profilers show too."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.profiler import record_function

from planner.events import Phase

_NAMES = {phase: f"planner.{phase.value}" for phase in Phase}
_PHASES = {name: phase for phase, name in _NAMES.items()}


def named_phase(phase: Phase) -> AbstractContextManager[object]:
    """What is done inside belongs to this phase."""
    return record_function(_NAMES[phase])


def find_phase(name: str) -> Phase | None:
    """The phase that a name of `record_function` stands for; None for any other name."""
    return _PHASES.get(name)
