"""In the place of what answers a program that reads values which nobody has (planner.paper.values.Reader)."""

from __future__ import annotations


class KnowsNothing:
    """Values that came from the host are followed, no other is answered."""

    def note(self, *_: object) -> None: ...

    def answer(self, *_: object) -> None: ...

    def copy(self, *_: object) -> bool:
        return False

    def assume(self, *_: object) -> bool:
        return False

    def count(self, *_: object) -> None: ...
