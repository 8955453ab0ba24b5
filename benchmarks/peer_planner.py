"""What planner says of a job of benchmarks/peers.py: traced anew, the fullest rank, in the figure that was measured."""

from __future__ import annotations

from peer_jobs import PeerJob


def estimate(job: PeerJob) -> int:
    return _of_program(job) if job.program else _of_spec(job)


def _of_spec(job: PeerJob) -> int:
    from planner.job.loading import load_job
    from planner.planning.pipeline import plan_with_traces

    timelines = plan_with_traces(load_job(job.spec_path)).timelines
    return max(getattr(timeline, f"peak_{job.measured.figure}_bytes") for timeline in timelines)


def _of_program(job: PeerJob) -> int:
    """A recorded program as tests/traces/test_recorded_programs.py runs it; the GPU was neither Hopper nor Blackwell."""
    import planner.paper as paper  # before torch
    from planner.allocator.replay import replay
    from planner.events import Alloc, Free

    import peer_models

    peer_models.recorded_programs()
    import recorded_language_models as models

    assert job.program == "lm24-train-ctx128" and job.measured.figure == "allocated"
    with paper.gpu("sm_86") as gpu:
        models.run_medium_training(peer_models.CONTEXT, False, lambda: None, lambda: None)
        events = [event for event in gpu.recorder.events() if isinstance(event, Alloc | Free)]
    return replay(events).peak_allocated_bytes
