"""Names the phases of a training by `record_function`, which profilers show as well as planner, and hears of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.profiler import record_function

from planner import upstream
from planner.events import BETWEEN_ITERATIONS, Phase

_NAMES = {phase: f"planner.{phase.value}" for phase in Phase}
_PHASES = {name: phase for phase, name in _NAMES.items()}
_ENTER = "torch.autograd.profiler:record_function.__enter__"


def named_phase(phase: Phase) -> AbstractContextManager[object]:
    """What is done inside belongs to this phase."""
    return record_function(_NAMES[phase])


def find_phase(name: str) -> Phase | None:
    """The phase that a name of `record_function` stands for; None for any other name."""
    return _PHASES.get(name)


@contextmanager
def hear_phases(begins: Callable[[Phase, int], None]) -> Iterator[None]:
    """Inside, it is called with every phase that is named, when that begins, and with its iteration: they are counted
    from 1, 0 is before the first."""
    steps = 0

    def entering(real: Callable[..., Any]) -> Callable[..., Any]:
        def enter(named: Any) -> Any:
            nonlocal steps
            if (phase := find_phase(named.name)) is not None:
                begins(phase, steps if phase in BETWEEN_ITERATIONS else steps + 1)
                steps += phase is Phase.OPTIMIZER_STEP
            return real(named)

        return enter

    with upstream.patch_targets("phases heard", wrapped={_ENTER: entering}):
        yield
