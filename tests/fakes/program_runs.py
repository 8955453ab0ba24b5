"""What the fixtures of the running programs' tests are, for annotations."""

from __future__ import annotations

from typing import Protocol

from planner.tracing.program.rank_orders import Announced, BroadcastNumber, RankRun


class Run(Protocol):
    """Runs a command as one rank of its world; `{programs}` in it is the folder of the tests' programs."""

    def __call__(
        self,
        command: str,
        *,
        rank: int = 0,
        steps: int = 0,
        strict: bool = False,
        seconds: float = 120,
        patience: float | None = 0,
        packages: tuple[str, ...] = (),
        kernels: str = "",
        otherwise: str = "",
        heard: tuple[Announced, ...] = (),
        numbers: tuple[BroadcastNumber, ...] = (),
        torch: str = "",
        target: str = "",
        is_known: bool = False,
        steps_at: tuple[int, ...] = (),
        gpus: int = 0,
        attests: bool = True,
        until_read: bool = False,
        batches: int | None = 0,
    ) -> RankRun: ...
