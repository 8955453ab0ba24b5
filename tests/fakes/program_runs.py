"""What the fixtures of the running programs' tests are, for annotations."""

from __future__ import annotations

from typing import Protocol

from planner.allocator.replay import replay
from planner.allocator.timeline import Timeline
from planner.events import write_out_repeats
from planner.job.schema import Gpu
from planner.planning.judging import told_on
from planner.tracing.program.rank_orders import Announced, BroadcastNumber, RankRun
from planner.tracing.rank_trace import Trace


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
        until_read: bool = False,
        batches: int | None = 0,
    ) -> RankRun: ...


def replay_on_h100(trace: Trace) -> Timeline:
    """What the allocator of an H100 does, on which what is given up is free once the GPU has passed it."""
    told = told_on(Gpu(name="H100-SXM-80GB", arch="sm_90", total_bytes=80 << 30), 8, trace)
    return replay(list(write_out_repeats(told.events, told.repeats)))
