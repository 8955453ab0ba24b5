"""What can be said to a person who gave planner something it cannot use."""

from __future__ import annotations


class PlannerError(Exception):
    """A fault in what arrived, never in planner: ends with exit code 2 and one message.

    `problem` says what arrived, `allowed` what would have been accepted, `remedy` what to change,
    `place` where it stands (`job.yaml:12:7`, `train.optimizer.name`).
    """

    def __init__(self, problem: str, *, allowed: str = "", remedy: str = "", place: str = "") -> None:
        self.problem, self.allowed, self.remedy, self.place = problem, allowed, remedy, place
        super().__init__(self._message())

    def _message(self) -> str:
        first = f"{self.place}: {self.problem}" if self.place else self.problem
        lines = [first]
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.remedy:
            lines.append(f"  change:  {self.remedy}")
        return "\n".join(lines)


class SpecError(PlannerError):
    """The job spec, or a file that it names, cannot be used."""


class SnapshotError(PlannerError):
    """A file that should be a snapshot of CUDA memory is not one, or not one that can be replayed."""


class AllocatorConfError(PlannerError):
    """`PYTORCH_ALLOC_CONF` holds something that is not modelled."""


class TraceError(PlannerError):
    """The step cannot be traced on the paper GPU; names the module and the operator."""


class MeasureError(PlannerError):
    """The step cannot be measured on this machine."""


class SettingError(PlannerError):
    """A setting of the process (`PLANNER_...`) cannot be used."""
