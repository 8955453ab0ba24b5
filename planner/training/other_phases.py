"""What a loop does between its iterations."""

from __future__ import annotations

from typing import Protocol


class OtherPhases(Protocol):
    """Told by the loop where it stands."""

    def __bool__(self) -> bool:
        """Whether there are any."""

    def begin(self) -> None:
        """Everything is loaded; the first iteration is next."""

    def before(self, iteration: int) -> None:
        """An iteration is next."""

    def after(self, iteration: int) -> None:
        """An iteration has ended, its evaluation too."""


class _NoOtherPhases:
    def __bool__(self) -> bool:
        return False

    def begin(self) -> None: ...

    def before(self, iteration: int) -> None: ...

    def after(self, iteration: int) -> None: ...


NO_OTHER_PHASES: OtherPhases = _NoOtherPhases()
