"""Names the phases of a training by `record_function`, which profilers show as well as planner, and hears of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

import torch
from torch.profiler import record_function

from planner import upstream
from planner.events import BETWEEN_ITERATIONS, Phase

_NAMES = {phase: f"planner.{phase.value}" for phase in Phase}
_PHASES = {name: phase for phase, name in _NAMES.items()}


def named_phase(phase: Phase) -> AbstractContextManager[object]:
    """What is done inside belongs to this phase."""
    return record_function(_NAMES[phase])


def find_phase(name: str) -> Phase | None:
    """The phase that a name of `record_function` stands for; None for any other name."""
    return _PHASES.get(name)


class Phases:
    """Calls `begins` with every phase of a program, when that begins, and with its iteration: they are counted from 1,
    0 is before the first. Of a program that names no phase, forwards and backwards say which there are: what follows a
    backward belongs to the step."""

    def __init__(self, begins: Callable[[Phase, int], None]) -> None:
        self._begins = begins
        self._steps = 0
        self.are_named = False
        """Whether the program has named one."""
        self._has_stepped = self._in_backward = False

    def heard(self) -> AbstractContextManager[None]:
        """Inside, phases that are named, and backwards, are heard of."""
        return upstream.patch_targets(
            "phases heard",
            wrapped={
                "torch.autograd.profiler:record_function.__enter__": self._entering,
                "torch.autograd:_engine_run_backward": self._around_backward,
            },
        )

    def forward_begins(self) -> None:
        """An outermost module is called."""
        if self.are_named or self._in_backward:
            return
        self._steps += self._has_stepped
        self._has_stepped = False
        self._tell(Phase.FORWARD if torch.is_grad_enabled() else Phase.EVAL)

    def step_ends(self) -> None:
        """An optimizer has stepped; the next forward begins an iteration."""
        self._has_stepped = not self.are_named

    def _tell(self, phase: Phase) -> None:
        self._begins(phase, self._steps if phase in BETWEEN_ITERATIONS else self._steps + 1)

    def _entering(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def enter(named: Any) -> Any:
            if (phase := find_phase(named.name)) is not None:
                self.are_named = True
                self._tell(phase)
                self._steps += phase is Phase.OPTIMIZER_STEP
            return real(named)

        return enter

    def _around_backward(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def run(*arguments: Any, **options: Any) -> Any:
            if self.are_named or self._in_backward:  # a block is recomputed inside another one
                return real(*arguments, **options)
            self._tell(Phase.BACKWARD)
            self._in_backward = True
            try:
                return real(*arguments, **options)
            finally:
                self._in_backward = False
                self._tell(Phase.OPTIMIZER_STEP)

        return run
