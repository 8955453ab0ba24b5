"""What can be said to a person who gave planner something it cannot use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LONGEST = {"problem": 2000, "allowed": 2000, "remedy": 1000, "place": 500}
"""Characters of each part of a message. Every one of planner's own is shorter: what is longer quotes what arrived."""


def shorten(text: str, most: int) -> str:
    """The text, cut after `most` characters, with the number of those that were left out."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"


class PlannerError(Exception):
    """A fault in what arrived, never in planner: ends with exit code 2 and one message.

    `problem` says what arrived, `allowed` what would have been accepted, `remedy` what to change,
    `place` where it stands (`job.yaml:12:7`, `train.optimizer.name`). Each part is cut to a length that a person reads:
    a message may quote what arrived, however long that is.
    """

    def __init__(self, problem: str, *, allowed: str = "", remedy: str = "", place: str = "") -> None:
        self.problem = shorten(problem, _LONGEST["problem"])
        self.allowed = shorten(allowed, _LONGEST["allowed"])
        self.remedy = shorten(remedy, _LONGEST["remedy"])
        self.place = shorten(place, _LONGEST["place"])
        super().__init__(self._message())

    @property
    def parts(self) -> dict[str, str]:
        """What is said, by the names above; without what is empty."""
        return {name: text for name in _LONGEST if (text := getattr(self, name))}

    @property
    def one_line(self) -> str:
        """All of it for where no line break is kept: a reason, a comment, a warning of an API."""
        lines = (" ".join(line.split()) for line in self._labelled("allowed: ", "change: "))
        return "; ".join(lines)

    def _message(self) -> str:
        return "\n".join(self._labelled("  allowed: ", "  change:  "))

    def _labelled(self, allowed: str, remedy: str) -> list[str]:
        first = f"{self.place}: {self.problem}" if self.place else self.problem
        lines = [first]
        if self.allowed:
            lines.append(allowed + self.allowed)
        if self.remedy:
            lines.append(remedy + self.remedy)
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), dict(vars(self)))


def restored(kind: type[PlannerError], fields: Mapping[str, Any]) -> PlannerError:
    """The error of this class with these fields, as it was in another process."""
    error = kind.__new__(kind)
    vars(error).update(fields)
    error.args = (error._message(),)
    return error


class SpecError(PlannerError):
    """The job spec, or a file that it names, cannot be used."""


class FactoryNotAllowedError(SpecError):
    """The job brings code (`model.factory`), and this process is not allowed to run it."""


class TorchVersionError(SpecError):
    """The job needs of torch what the version that plans it does not have."""


class SnapshotError(PlannerError):
    """A file that should be a snapshot of CUDA memory is not one, or not one that can be replayed."""


class AllocatorConfError(PlannerError):
    """`PYTORCH_ALLOC_CONF` holds something that is not modelled."""


class TraceError(PlannerError):
    """The step cannot be traced on the paper GPU; names the module and the operator."""


class ProgramError(PlannerError):
    """A program cannot be run on paper to the end of its first steps; says whose fault it is."""


class MeasureError(PlannerError):
    """The step cannot be measured on this machine."""


class SettingError(PlannerError):
    """A setting of the process (`PLANNER_...`) cannot be used."""


class FactsError(PlannerError):
    """A file of measured facts (`PLANNER_FACTS`) cannot be read."""
