"""What planner says of a job of benchmarks/peers.py: traced anew, the fullest rank, in the figure that was measured."""

from __future__ import annotations

import peer_jobs
from peer_jobs import PeerJob


def estimate(job: PeerJob) -> int:
    return _of_program(job) if job.program else _of_spec(job)


def _of_spec(job: PeerJob) -> int:
    from planner.job.loading import load_job
    from planner.planning.plan import plan_job

    timelines = plan_job(load_job(job.spec_path)).timelines
    return max(max(getattr(timeline, f"{job.measured.figure}_bytes")) for timeline in timelines)


def _of_program(job: PeerJob) -> int:
    """What was recorded, as tests/tracing/traces/test_recorded_programs.py runs it; the GPU was not a Hopper."""
    import planner.paper as paper  # before torch
    from planner.allocator.replay import replay
    from planner.events import Alloc, Free

    peer_jobs.recorded_programs()
    import recorded_language_models as models

    if (job.program, job.measured.figure) != ("lm24-train-ctx128", "allocated"):
        raise ValueError(f"{job.name}: only lm24-train-ctx128 is run here, and its allocated bytes told")
    with paper.gpu("sm_86") as gpu:
        before: list[int] = []

        def events() -> list[Alloc | Free]:
            return [event for event in gpu.recorder.events() if isinstance(event, Alloc | Free)]

        models.run_medium_training(peer_jobs.CONTEXT, False, lambda: before.append(len(events())), lambda: None)
        return max(replay(events()).allocated_bytes[before[0] :])
